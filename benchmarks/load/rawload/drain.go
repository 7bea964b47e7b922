package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "tandemmq.local/rocketmqv2"
)

// refusedPause keeps a receiver from storming a server that refuses it.
const refusedPause = 10 * time.Millisecond

// consumer is what all receivers of one group and topic share.
type consumer struct {
	options      *options
	group, topic *pb.Resource
	filter       *pb.FilterExpression
	queues       []*pb.MessageQueue
	meter        *Meter
	turn         atomic.Uint64
	acked, empty atomic.Int64
	mutex        sync.Mutex
	seen         map[string]struct{}
	duplicates   int
	work         context.Context
	end          context.CancelCauseFunc
	clients      []*client
	connections  group
}

// consumers dials o.connections connections and introduces each as a simple consumer.
func consumers(ctx context.Context, o *options) (*consumer, error) {
	c := &consumer{
		options: o, group: &pb.Resource{Name: o.group}, topic: &pb.Resource{Name: o.topic},
		filter: &pb.FilterExpression{Type: pb.FilterType_TAG, Expression: "*"},
		meter:  newMeter(o.plan), seen: map[string]struct{}{},
	}
	c.work, c.end = context.WithCancelCause(ctx)
	c.connections.failed = c.end
	for number := 0; number < o.connections; number++ {
		client, err := dial(o, number, usualReadBytes)
		if err != nil {
			return nil, err
		}
		simple, batch := pb.ClientType_SIMPLE_CONSUMER, int32(o.batch)
		queues, err := client.begin(&pb.Settings{
			ClientType: &simple,
			PubSub: &pb.Settings_Subscription{Subscription: &pb.Subscription{
				Group: c.group, ReceiveBatchSize: &batch, LongPollingTimeout: durationpb.New(o.poll),
				Subscriptions: []*pb.SubscriptionEntry{{Topic: c.topic, Expression: c.filter}},
			}},
		}, o.topic)
		if err != nil {
			return nil, err
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

// receiveRequest asks the next queue in turn.
func (c *consumer) receiveRequest() *pb.ReceiveMessageRequest {
	o := c.options
	return &pb.ReceiveMessageRequest{
		Group: c.group, MessageQueue: c.queues[c.turn.Add(1)%uint64(len(c.queues))], FilterExpression: c.filter,
		BatchSize: int32(o.batch), InvisibleDuration: durationpb.New(o.invisible), LongPollingTimeout: durationpb.New(o.poll),
	}
}

// receivers makes `count` receivers for the client of that number, of all clients' in turn.
func (c *consumer) receivers(number, count int, turns int) (made []*receiver) {
	for one := number; one < count; one += len(c.clients) {
		made = append(made, &receiver{consumer: c, client: c.clients[number], turnsLeft: turns})
	}
	return made
}

// serve runs `count` receivers over all connections, each for so many turns, until the work is over.
func (c *consumer) serve(count, turns int) {
	var resting atomic.Int64
	for number, client := range c.clients {
		receivers := c.receivers(number, count, turns)
		c.connections.run(client, func() error {
			for _, one := range receivers {
				one.next()
			}
			err := client.runUntil(func() bool { return c.work.Err() != nil || allDone(receivers) })
			if resting.Add(1) == int64(len(c.clients)) {
				c.end(nil)
			}
			return err
		})
	}
	c.meter.run(c.work)
	c.end(nil)
	c.connections.wait()
}

func allDone(receivers []*receiver) bool {
	for _, one := range receivers {
		if one.turnsLeft != 0 {
			return false
		}
	}
	return true
}

// subscribe receives once from each queue, which makes the group known: a server lets a new group start at the end of the
// queues, so a group that is to drain what is sent must have asked before. What it happens to get is acknowledged.
func subscribe(ctx context.Context, o *options) error {
	c, err := consumers(ctx, o)
	if err != nil {
		return err
	}
	c.serve(len(c.queues), 1)
	c.meter.finish()
	if c.meter.total.errors.Load() > 0 {
		return fmt.Errorf("group %s could not receive from %s", o.group, o.topic)
	}
	return failure(c.work)
}

// drain receives and acknowledges with o.receivers receivers until o.count messages are acknowledged.
func drain(ctx context.Context, o *options) error {
	if o.plan.Windows == 0 && o.count == 0 {
		return errors.New("drain needs --count or --windows")
	}
	c, err := consumers(ctx, o)
	if err != nil {
		return err
	}
	defer time.AfterFunc(o.limit, func() {
		c.end(fmt.Errorf("%d of %d messages acknowledged within %v", c.acked.Load(), o.count, o.limit))
	}).Stop()
	c.serve(o.receivers, endless)
	c.meter.extra("acked", c.acked.Load())
	c.meter.extra("duplicates", c.duplicates)
	c.meter.extra("empty_receives", c.empty.Load())
	c.meter.finish()
	return failure(c.work)
}

// endless is a number of turns that is never used up.
const endless = -1

// receiver asks for messages, acknowledges each, and asks again. It is the call it waits for.
type receiver struct {
	*consumer
	client    *client
	turnsLeft int
	started   time.Time
	latency   time.Duration // of the receive, up to the end of its stream
	entries   []*pb.AckMessageEntry
	refused   error
	acks      int // under way
	settled   int // messages
}

func (r *receiver) next() {
	r.started, r.refused, r.entries, r.settled = time.Now(), nil, r.entries[:0], 0
	r.client.request(receiveMessage, r.receiveRequest(), r, r.options.poll)
}

func (r *receiver) message(data []byte) {
	answer := &pb.ReceiveMessageResponse{}
	if err := proto.Unmarshal(data, answer); err != nil {
		r.refused = err
		return
	}
	if message := answer.GetMessage(); message != nil {
		properties := message.GetSystemProperties()
		r.entries = append(r.entries, &pb.AckMessageEntry{
			MessageId: properties.GetMessageId(), ReceiptHandle: properties.GetReceiptHandle(),
		})
	} else if code := answer.GetStatus().GetCode(); answer.GetStatus() != nil && code != pb.Code_OK && code != pb.Code_MESSAGE_NOT_FOUND {
		r.refused = errors.New(answer.GetStatus().String())
	}
}

func (r *receiver) ended(err error) {
	r.latency = time.Since(r.started)
	if err == nil {
		err = r.refused
	}
	switch {
	case r.work.Err() != nil:
	case err != nil:
		r.meter.failed("receive: " + err.Error())
		time.Sleep(refusedPause)
		r.turnOver()
	case len(r.entries) == 0:
		r.empty.Add(1)
		r.turnOver()
	default:
		r.note()
		r.acknowledge()
	}
}

// turnOver begins the next turn, if there is one.
func (r *receiver) turnOver() {
	if r.turnsLeft > 0 {
		r.turnsLeft--
	}
	if r.turnsLeft != 0 {
		r.next()
	}
}

// note counts messages that were delivered before.
func (r *receiver) note() {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for _, entry := range r.entries {
		if _, known := r.seen[entry.MessageId]; known {
			r.duplicates++
		}
		r.seen[entry.MessageId] = struct{}{}
	}
}

// acknowledge sends one AckMessage for each message, all at once, as official clients do; with --ack-batch one for all.
func (r *receiver) acknowledge() {
	each := 1
	if r.options.ackBatch {
		each = len(r.entries)
	}
	r.acks = len(r.entries) / each
	for first := 0; first < len(r.entries); first += each {
		entries := r.entries[first : first+each]
		request := &pb.AckMessageRequest{Group: r.group, Topic: r.topic, Entries: entries}
		r.client.request(ackMessage, request, &acknowledgement{receiver: r, messages: each}, 0)
	}
}

// settle hears of one acknowledgement that is over; behind the last one the turn is.
func (r *receiver) settle(messages int) {
	r.settled += messages
	if r.acks--; r.acks > 0 || r.work.Err() != nil {
		return
	}
	if r.settled > 0 {
		r.meter.done(r.settled, r.latency)
	}
	if total := r.acked.Add(int64(r.settled)); r.options.count > 0 && total >= r.options.count {
		r.end(nil)
		return
	}
	r.turnOver()
}

// acknowledgement is an AckMessage under way.
type acknowledgement struct {
	receiver *receiver
	messages int
	answer   pb.AckMessageResponse
	broken   error
}

func (a *acknowledgement) message(data []byte) { a.broken = proto.Unmarshal(data, &a.answer) }

func (a *acknowledgement) ended(err error) {
	if err == nil {
		err = a.broken
	}
	acked := 0
	for _, entry := range a.answer.GetEntries() {
		if entry.GetStatus().GetCode() == pb.Code_OK {
			acked++
		}
	}
	if a.receiver.work.Err() == nil {
		if err != nil {
			a.receiver.meter.failed("ack: " + err.Error())
		} else if acked < a.messages {
			a.receiver.meter.failed("ack: " + a.answer.String())
		}
	}
	a.receiver.settle(acked)
}
