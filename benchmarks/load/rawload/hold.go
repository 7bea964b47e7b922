package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	pb "tandemmq.local/rocketmqv2"
)

const (
	// It is the server's memory that is looked at, and this program runs beside it; a frame must fit.
	idleReadBytes = 17 << 10
	// More dials at once would only fill the server's listen backlog.
	dialsAtOnce = 64
)

// idle opens o.connections HTTP/2 connections without a single request on them, says when all are up, and keeps them.
func idle(ctx context.Context, o *options) error {
	began := time.Now()
	holding, over := context.WithCancelCause(ctx)
	defer time.AfterFunc(o.limit, func() { over(fmt.Errorf("not all connections were up within %v", o.limit)) }).Stop()
	var up, gone atomic.Int64
	var dials, held sync.WaitGroup
	turns := make(chan struct{}, dialsAtOnce)
	for number := 0; number < o.connections && holding.Err() == nil; number++ {
		turns <- struct{}{}
		dials.Add(1)
		held.Go(func() {
			c, err := dial(o, number, idleReadBytes)
			<-turns
			if err == nil {
				up.Add(1)
			}
			dials.Done()
			if err != nil {
				return
			}
			if c.runUntil(func() bool { return holding.Err() != nil }) != nil {
				gone.Add(1)
			}
			c.close()
		})
	}
	dials.Wait()
	emit(map[string]any{"op": "connected", "connections": o.connections, "up": up.Load(), "seconds": rounded(time.Since(began).Seconds())})
	o.plan.Windows = 1
	o.plan.Seconds = o.hold
	meter := newMeter(o.plan)
	meter.run(holding)
	stillUp := up.Load() - gone.Load()
	over(nil)
	held.Wait()
	meter.extra("up", up.Load())
	meter.extra("still_up", stillUp)
	meter.finish()
	if stillUp < int64(o.connections) {
		return fmt.Errorf("%d of %d connections were up, %d at the end", up.Load(), o.connections, stillUp)
	}
	return failure(holding)
}

// streams holds o.streams long-polling ReceiveMessage streams at once on a topic without messages, and checks how each ends.
// Every stream makes one request; its message is never acknowledged.
func streams(ctx context.Context, o *options) error {
	c, err := consumers(ctx, o)
	if err != nil {
		return err
	}
	tally := &pollTally{failures: map[string]int{}}
	var resting atomic.Int64
	for number, client := range c.clients {
		left := 0
		for one := number; one < o.streams; one += len(c.clients) {
			left++
		}
		c.connections.run(client, func() error {
			for range left {
				p := &poll{consumer: c, tally: tally, started: time.Now(), left: &left}
				client.start(&call{answers: p, method: receiveMessage, limit: o.poll + o.timeout, opened: p.opened}, c.receiveRequest())
			}
			err := client.runUntil(func() bool { return left == 0 || c.work.Err() != nil })
			if resting.Add(1) == int64(len(c.clients)) {
				c.end(nil)
			}
			return err
		})
	}
	c.meter.plan.Windows = 0
	c.meter.run(c.work)
	c.connections.wait()
	c.meter.extra("connections", o.connections)
	c.meter.extra("streams", o.streams)
	c.meter.extra("open_at_once", tally.peak)
	c.meter.extra("ended_properly", tally.proper)
	c.meter.extra("failures", tally.failures)
	c.meter.finish()
	if tally.peak < o.streams || tally.proper < o.streams {
		return fmt.Errorf("%d of %d streams were open at once, %d ended properly", tally.peak, o.streams, tally.proper)
	}
	return failure(c.work)
}

// pollTally counts the polls of all connections.
type pollTally struct {
	mutex              sync.Mutex
	open, peak, proper int
	failures           map[string]int
}

// poll is one ReceiveMessage.
type poll struct {
	*consumer
	tally    *pollTally
	started  time.Time
	left     *int // of its connection's
	isOpen   bool
	messages int
}

func (p *poll) opened() {
	p.tally.mutex.Lock()
	defer p.tally.mutex.Unlock()
	p.isOpen = true
	p.tally.open++
	p.tally.peak = max(p.tally.peak, p.tally.open)
}

func (p *poll) message(data []byte) {
	answer := &pb.ReceiveMessageResponse{}
	if proto.Unmarshal(data, answer) == nil && answer.GetMessage() != nil {
		p.messages++
	}
}

func (p *poll) ended(err error) {
	*p.left--
	p.tally.mutex.Lock()
	defer p.tally.mutex.Unlock()
	if p.isOpen {
		p.tally.open--
	}
	if err == nil {
		p.tally.proper++
		p.meter.done(p.messages, time.Since(p.started))
		return
	}
	p.tally.failures[err.Error()]++
	p.meter.failed(err.Error())
}
