package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "tandemmq.local/rocketmqv2"
)

// consumer is what all receivers of one group and topic share.
type consumer struct {
	options        *options
	group, topic   *pb.Resource
	filter         *pb.FilterExpression
	queues         []*pb.MessageQueue
	meter          *Meter
	turn           atomic.Uint64
	acked, empty   atomic.Int64
	mutex          sync.Mutex
	seen           map[string]struct{}
	duplicates     int
	enough         context.CancelFunc
	clients        []*client
	closeTelemetry context.CancelFunc
}

// consumers dials o.connections connections and introduces each as a simple consumer.
func consumers(ctx context.Context, o *options) (*consumer, error) {
	ctx, stop := context.WithCancel(ctx)
	c := &consumer{
		options: o, group: &pb.Resource{Name: o.group}, topic: &pb.Resource{Name: o.topic},
		filter: &pb.FilterExpression{Type: pb.FilterType_TAG, Expression: "*"},
		meter:  newMeter(o.plan), seen: map[string]struct{}{}, closeTelemetry: stop,
	}
	for number := 0; number < o.connections; number++ {
		client, err := dial(o, number)
		if err != nil {
			return nil, err
		}
		simple, batch := pb.ClientType_SIMPLE_CONSUMER, int32(o.batch)
		queues, err := client.begin(ctx, &pb.Settings{
			ClientType: &simple,
			PubSub: &pb.Settings_Subscription{Subscription: &pb.Subscription{
				Group: c.group, ReceiveBatchSize: &batch, LongPollingTimeout: durationpb.New(o.poll),
				Subscriptions: []*pb.SubscriptionEntry{{Topic: c.topic, Expression: c.filter}},
			}},
		}, o.topic)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.endpoint, err)
		}
		c.clients = append(c.clients, client)
		c.queues = c.queues[:0]
		for _, queue := range queues {
			if queue.GetPermission() == pb.Permission_READ || queue.GetPermission() == pb.Permission_READ_WRITE {
				c.queues = append(c.queues, queue)
			}
		}
	}
	if len(c.queues) == 0 {
		return nil, fmt.Errorf("topic %s has no queue to read", o.topic)
	}
	return c, nil
}

// subscribe receives once from each queue, which makes the group known: a server lets a new group start at the end of the
// queues, so a group that is to drain what is sent must have asked before. What it happens to get is acknowledged.
func subscribe(ctx context.Context, o *options) error {
	c, err := consumers(ctx, o)
	if err != nil {
		return err
	}
	defer c.end()
	var receives sync.WaitGroup
	work, done := context.WithCancel(ctx)
	for range c.queues {
		receives.Go(func() { c.receiveAndAcknowledge(work, c.clients[0]) })
	}
	go func() { receives.Wait(); done() }()
	c.meter.run(work)
	c.meter.finish()
	if c.meter.total.errors.Load() > 0 {
		return fmt.Errorf("group %s could not receive from %s", o.group, o.topic)
	}
	return nil
}

func (c *consumer) end() {
	for _, client := range c.clients {
		client.end(c.group)
	}
	c.closeTelemetry()
}

// drain receives and acknowledges with o.receivers receivers until o.count messages are acknowledged.
func drain(ctx context.Context, o *options) error {
	c, err := consumers(ctx, o)
	if err != nil {
		return err
	}
	defer c.end()
	if o.plan.Windows == 0 && o.count == 0 {
		return errors.New("drain needs --count or --windows")
	}
	// A timer and no deadline: the requests' own deadlines must not shrink towards the end.
	work, enough := context.WithCancel(ctx)
	c.enough = enough
	var late atomic.Bool
	defer time.AfterFunc(o.limit, func() { late.Store(true); enough() }).Stop()
	var receivers sync.WaitGroup
	for number := 0; number < o.receivers; number++ {
		client := c.clients[number%len(c.clients)]
		receivers.Go(func() {
			for work.Err() == nil {
				c.receiveAndAcknowledge(work, client)
			}
		})
	}
	c.meter.run(work)
	enough()
	receivers.Wait()
	c.meter.extra("acked", c.acked.Load())
	c.meter.extra("duplicates", c.duplicates)
	c.meter.extra("empty_receives", c.empty.Load())
	c.meter.finish()
	if late.Load() && c.acked.Load() < o.count {
		return fmt.Errorf("%d of %d messages acknowledged within %v", c.acked.Load(), o.count, o.limit)
	}
	return nil
}

// receiveAndAcknowledge is one turn of a receiver. Its latency is that of the receive, up to the end of the stream.
func (c *consumer) receiveAndAcknowledge(ctx context.Context, client *client) {
	started := time.Now()
	messages, err := c.receive(ctx, client, func() {})
	latency := time.Since(started)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		c.meter.failed("receive: " + err.Error())
		wait(ctx, 10*time.Millisecond) // no storm against a server that refuses
		return
	}
	if len(messages) == 0 {
		c.empty.Add(1)
		return
	}
	c.note(messages)
	acked := c.acknowledge(ctx, client, messages)
	if ctx.Err() == nil && acked > 0 {
		c.meter.done(acked, latency)
	}
	if total := c.acked.Add(int64(acked)); c.options.count > 0 && total >= c.options.count {
		c.enough()
	}
}

// receive makes one ReceiveMessage request to the next queue in turn and reads its stream to the end. `opened` is called
// when the stream is under way: the server's limit of concurrent streams has let it pass.
func (c *consumer) receive(ctx context.Context, client *client, opened func()) (messages []*pb.Message, err error) {
	call, done := client.call(ctx, c.options.poll+c.options.timeout)
	defer done()
	stream, err := client.stub.ReceiveMessage(call, &pb.ReceiveMessageRequest{
		Group: c.group, MessageQueue: c.queues[c.turn.Add(1)%uint64(len(c.queues))], FilterExpression: c.filter,
		BatchSize: int32(c.options.batch), InvisibleDuration: durationpb.New(c.options.invisible),
		LongPollingTimeout: durationpb.New(c.options.poll),
	})
	if err != nil {
		return nil, err
	}
	opened()
	for {
		answer, err := stream.Recv()
		if err == io.EOF {
			return messages, nil
		}
		if err != nil {
			return nil, err
		}
		if message := answer.GetMessage(); message != nil {
			messages = append(messages, message)
		} else if code := answer.GetStatus().GetCode(); answer.GetStatus() != nil && code != pb.Code_OK && code != pb.Code_MESSAGE_NOT_FOUND {
			return nil, errors.New(answer.GetStatus().String())
		}
	}
}

// note counts messages that were delivered before.
func (c *consumer) note(messages []*pb.Message) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, message := range messages {
		id := message.GetSystemProperties().GetMessageId()
		if _, known := c.seen[id]; known {
			c.duplicates++
		}
		c.seen[id] = struct{}{}
	}
}

// acknowledge sends one AckMessage for each message, all at once, as official clients do; with --ack-batch one for all.
func (c *consumer) acknowledge(ctx context.Context, client *client, messages []*pb.Message) int {
	if c.options.ackBatch {
		return c.acknowledgeTogether(ctx, client, messages)
	}
	var acked atomic.Int64
	var calls sync.WaitGroup
	for i := range messages {
		calls.Go(func() { acked.Add(int64(c.acknowledgeTogether(ctx, client, messages[i:i+1]))) })
	}
	calls.Wait()
	return int(acked.Load())
}

func (c *consumer) acknowledgeTogether(ctx context.Context, client *client, messages []*pb.Message) int {
	request := &pb.AckMessageRequest{Group: c.group, Topic: c.topic}
	for _, message := range messages {
		properties := message.GetSystemProperties()
		request.Entries = append(request.Entries, &pb.AckMessageEntry{
			MessageId: properties.GetMessageId(), ReceiptHandle: properties.GetReceiptHandle(),
		})
	}
	call, done := client.call(ctx, c.options.timeout)
	defer done()
	answer, err := client.stub.AckMessage(call, request)
	switch {
	case ctx.Err() != nil:
		return 0
	case err != nil:
		c.meter.failed("ack: " + err.Error())
		return 0
	}
	acked := 0
	for _, entry := range answer.GetEntries() {
		if entry.GetStatus().GetCode() == pb.Code_OK {
			acked++
		}
	}
	if acked < len(messages) {
		c.meter.failed("ack: " + answer.String())
	}
	return acked
}
