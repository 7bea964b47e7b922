package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "tandemmq.local/rocketmqv2"
)

// messageGroups is how many message groups messages of the kind fifo go round.
const messageGroups = 64

// kinds are the types of messages by the names of the flag.
var kinds = map[string]pb.MessageType{
	"normal": pb.MessageType_NORMAL, "fifo": pb.MessageType_FIFO, "delay": pb.MessageType_DELAY,
	"transaction": pb.MessageType_TRANSACTION,
}

// sender is one slot of the closed loop: it has exactly one SendMessage in flight until the work is over, or the end of
// the transaction that it began.
type sender struct {
	*sending
	kind     pb.MessageType
	delay    time.Duration
	commit   *commit
	client   *client
	request  *pb.SendMessageRequest
	answer   pb.SendMessageResponse
	answered error
	started  time.Time
	isAtRest bool
}

// sending is what all slots share.
type sending struct {
	work   context.Context
	queues []*pb.MessageQueue
	topics []string // to go round; empty when all messages go to one topic
	ids    *messageIDs
	meter  *Meter
	turn   atomic.Uint64
}

// send keeps o.inflight requests in the air over o.connections connections until the windows are over.
func send(ctx context.Context, o *options) error {
	clients, queues, err := producers(o)
	if err != nil {
		return err
	}
	work, end := context.WithCancelCause(ctx)
	shared := &sending{work: work, queues: queues, topics: manyTopics(o), ids: newMessageIDs(), meter: newMeter(o.plan)}
	connections := group{failed: end}
	for number, c := range clients {
		var slots []*sender
		for slot := number; slot < o.inflight; slot += len(clients) {
			slots = append(slots, newSender(c, o, shared))
		}
		connections.run(c, func() error {
			for _, slot := range slots {
				slot.next()
			}
			return c.runUntil(func() bool {
				return work.Err() != nil && allAtRest(slots)
			})
		})
	}
	shared.meter.run(work)
	end(nil)
	connections.wait()
	shared.meter.finish()
	return failure(work)
}

func allAtRest(slots []*sender) bool {
	for _, slot := range slots {
		if !slot.isAtRest {
			return false
		}
	}
	return true
}

// manyTopics names the topics that sends go round. They have as many queues as the first one, whose route is asked for.
func manyTopics(o *options) (names []string) {
	for number := 0; o.topics > 1 && number < o.topics; number++ {
		names = append(names, numbered(o.topic, number))
	}
	return names
}

func numbered(topic string, number int) string { return fmt.Sprintf("%s-%05d", topic, number) }

func producers(o *options) (clients []*client, queues []*pb.MessageQueue, err error) {
	topic := o.topic
	if o.topics > 1 {
		topic = numbered(topic, 0)
	}
	for number := 0; number < o.connections; number++ {
		c, err := dial(o, number, usualReadBytes)
		if err != nil {
			return nil, nil, err
		}
		producer := pb.ClientType_PRODUCER
		queues, err = c.begin(&pb.Settings{
			ClientType: &producer,
			PubSub:     &pb.Settings_Publishing{Publishing: &pb.Publishing{Topics: []*pb.Resource{{Name: topic}}}},
		}, topic)
		if err != nil {
			return nil, nil, err
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

func newSender(c *client, o *options, shared *sending) *sender {
	s := &sender{sending: shared, client: c, request: &pb.SendMessageRequest{}, kind: kinds[o.kind], delay: o.delay}
	s.commit = &commit{sender: s}
	host, _ := os.Hostname()
	body := bytes.Repeat([]byte("abcdefghijklmnop"), o.size/16+1)[:o.size]
	for range o.batch {
		properties := &pb.SystemProperties{
			Keys:          []string{""},
			BodyEncoding:  pb.Encoding_IDENTITY,
			MessageType:   s.kind,
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

// next fills in what differs between two requests. All messages of a request go to one queue.
func (s *sender) next() {
	turn := s.turn.Add(1)
	queueTurn := turn
	if count := uint64(len(s.topics)); count > 0 {
		queueTurn = turn / count
		for _, message := range s.request.Messages {
			message.Topic.Name = s.topics[turn%count]
		}
	}
	s.started = time.Now()
	queue := s.queues[queueTurn%uint64(len(s.queues))]
	for i, message := range s.request.Messages {
		properties := message.SystemProperties
		properties.MessageId = s.ids.next()
		properties.Keys[0] = "k" + strconv.FormatUint(turn*uint64(len(s.request.Messages))+uint64(i), 10)
		properties.BornTimestamp.Seconds, properties.BornTimestamp.Nanos = s.started.Unix(), int32(s.started.Nanosecond())
		properties.QueueId = queue.GetId()
		switch s.kind {
		case pb.MessageType_FIFO:
			group := "g" + strconv.FormatUint(turn%messageGroups, 10)
			properties.MessageGroup = &group
		case pb.MessageType_DELAY:
			properties.DeliveryTimestamp = timestamppb.New(s.started.Add(s.delay))
		}
	}
	s.client.request(sendMessage, s.request, s, 0)
}

func (s *sender) message(answer []byte) {
	s.answered = proto.Unmarshal(answer, &s.answer)
}

func (s *sender) ended(err error) {
	switch {
	case err != nil:
		s.meter.failed(err.Error())
	case s.answered != nil:
		s.meter.failed(s.answered.Error())
	case s.answer.GetStatus().GetCode() != pb.Code_OK:
		s.meter.failed(s.answer.GetStatus().String())
	case s.kind == pb.MessageType_TRANSACTION && len(s.answer.GetEntries()) == 1:
		entry := s.answer.GetEntries()[0]
		s.answer.Status = nil
		s.client.request(endTransaction, &pb.EndTransactionRequest{
			Topic: s.request.Messages[0].Topic, MessageId: entry.GetMessageId(), TransactionId: entry.GetTransactionId(),
			Resolution: pb.TransactionResolution_COMMIT, Source: pb.TransactionSource_SOURCE_CLIENT,
		}, s.commit, 0)
		return
	default:
		s.meter.done(len(s.request.Messages), time.Since(s.started))
	}
	s.answer.Status = nil
	s.goOn()
}

// goOn begins the next send, if the work is not over.
func (s *sender) goOn() {
	if s.isAtRest = s.work.Err() != nil; !s.isAtRest {
		s.next()
	}
}

// commit is the second half of a transaction; a message counts when it is answered.
type commit struct {
	sender   *sender
	answer   pb.EndTransactionResponse
	answered error
}

func (c *commit) message(answer []byte) {
	c.answered = proto.Unmarshal(answer, &c.answer)
}

func (c *commit) ended(err error) {
	s := c.sender
	switch {
	case err != nil:
		s.meter.failed(err.Error())
	case c.answered != nil:
		s.meter.failed(c.answered.Error())
	case c.answer.GetStatus().GetCode() != pb.Code_OK:
		s.meter.failed(c.answer.GetStatus().String())
	default:
		s.meter.done(1, time.Since(s.started))
	}
	c.answer.Status = nil
	s.goOn()
}
