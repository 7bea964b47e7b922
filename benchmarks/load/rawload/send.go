package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "tandemmq.local/rocketmqv2"
)

// sender is one slot of the closed loop: it has exactly one SendMessage in flight at any time.
type sender struct {
	client  *client
	request *pb.SendMessageRequest
	queues  []*pb.MessageQueue
	topics  []string // to go round; empty when all messages go to one topic
	ids     *messageIDs
	meter   *Meter
}

// send keeps o.inflight requests in the air over o.connections connections until the windows are over.
func send(ctx context.Context, o *options) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	clients, queues, err := producers(ctx, o)
	if err != nil {
		return err
	}
	meter, ids, topics := newMeter(o.plan), newMessageIDs(), manyTopics(o)
	work, end := context.WithCancel(ctx)
	var slots sync.WaitGroup
	var turn atomic.Uint64
	for slot := 0; slot < o.inflight; slot++ {
		s := newSender(clients[slot%len(clients)], o, queues, ids, meter)
		s.topics = topics
		slots.Go(func() {
			for work.Err() == nil {
				s.send(ctx, turn.Add(1))
			}
		})
	}
	meter.run(work)
	end()
	slots.Wait()
	for _, c := range clients {
		c.end(nil)
	}
	meter.finish()
	return nil
}

// manyTopics names the topics that sends go round. They have as many queues as the first one, whose route is asked for.
func manyTopics(o *options) (names []string) {
	for number := 0; o.topics > 1 && number < o.topics; number++ {
		names = append(names, numbered(o.topic, number))
	}
	return names
}

func numbered(topic string, number int) string { return fmt.Sprintf("%s-%05d", topic, number) }

func producers(ctx context.Context, o *options) (clients []*client, queues []*pb.MessageQueue, err error) {
	topic := o.topic
	if o.topics > 1 {
		topic = numbered(topic, 0)
	}
	for number := 0; number < o.connections; number++ {
		c, err := dial(o, number)
		if err != nil {
			return nil, nil, err
		}
		producer := pb.ClientType_PRODUCER
		queues, err = c.begin(ctx, &pb.Settings{
			ClientType: &producer,
			PubSub:     &pb.Settings_Publishing{Publishing: &pb.Publishing{Topics: []*pb.Resource{{Name: topic}}}},
		}, topic)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", o.endpoint, err)
		}
		clients = append(clients, c)
	}
	writable := queues[:0]
	for _, queue := range queues {
		if queue.GetPermission() == pb.Permission_WRITE || queue.GetPermission() == pb.Permission_READ_WRITE {
			writable = append(writable, queue)
		}
	}
	if len(writable) == 0 {
		return nil, nil, fmt.Errorf("topic %s has no queue to write to", o.topic)
	}
	return clients, writable, nil
}

func newSender(c *client, o *options, queues []*pb.MessageQueue, ids *messageIDs, meter *Meter) *sender {
	s := &sender{client: c, request: &pb.SendMessageRequest{}, queues: queues, ids: ids, meter: meter}
	host, _ := os.Hostname()
	body := bytes.Repeat([]byte("abcdefghijklmnop"), o.size/16+1)[:o.size]
	for range o.batch {
		properties := &pb.SystemProperties{
			Keys:          []string{""},
			BodyEncoding:  pb.Encoding_IDENTITY,
			MessageType:   pb.MessageType_NORMAL,
			BornTimestamp: &timestamppb.Timestamp{},
			BornHost:      host,
		}
		if o.tag != "" {
			properties.Tag = &o.tag
		}
		s.request.Messages = append(s.request.Messages, &pb.Message{
			Topic: &pb.Resource{Name: o.topic}, SystemProperties: properties, Body: body,
		})
	}
	return s
}

// send fills in what differs between two requests, and waits for the answer. All messages of a request go to one queue.
func (s *sender) send(ctx context.Context, turn uint64) {
	started, queueTurn := time.Now(), turn
	if count := uint64(len(s.topics)); count > 0 {
		queueTurn = turn / count
		for _, message := range s.request.Messages {
			message.Topic.Name = s.topics[turn%count]
		}
	}
	queue := s.queues[queueTurn%uint64(len(s.queues))]
	for i, message := range s.request.Messages {
		properties := message.SystemProperties
		properties.MessageId = s.ids.next()
		properties.Keys[0] = "k" + strconv.FormatUint(turn*uint64(len(s.request.Messages))+uint64(i), 10)
		properties.BornTimestamp.Seconds, properties.BornTimestamp.Nanos = started.Unix(), int32(started.Nanosecond())
		properties.QueueId = queue.GetId()
	}
	call, done := s.client.call(ctx, s.client.timeout)
	defer done()
	answer, err := s.client.stub.SendMessage(call, s.request)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		s.meter.failed(err.Error())
	case answer.GetStatus().GetCode() != pb.Code_OK:
		s.meter.failed(answer.GetStatus().String())
	default:
		s.meter.done(len(s.request.Messages), time.Since(started))
	}
}
