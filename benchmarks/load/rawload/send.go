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
	meter, ids := newMeter(o.plan), newMessageIDs()
	work, end := context.WithCancel(ctx)
	var slots sync.WaitGroup
	var turn atomic.Uint64
	for slot := 0; slot < o.inflight; slot++ {
		s := newSender(clients[slot%len(clients)], o, queues, ids, meter)
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

func producers(ctx context.Context, o *options) (clients []*client, queues []*pb.MessageQueue, err error) {
	for number := 0; number < o.connections; number++ {
		c, err := dial(o, number)
		if err != nil {
			return nil, nil, err
		}
		producer := pb.ClientType_PRODUCER
		queues, err = c.begin(ctx, &pb.Settings{
			ClientType: &producer,
			PubSub:     &pb.Settings_Publishing{Publishing: &pb.Publishing{Topics: []*pb.Resource{{Name: o.topic}}}},
		}, o.topic)
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
	queue, started := s.queues[turn%uint64(len(s.queues))], time.Now()
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
