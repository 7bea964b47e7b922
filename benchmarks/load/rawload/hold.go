package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
)

// idle opens o.connections HTTP/2 connections without a single request on them, says when all are up, and keeps them.
func idle(ctx context.Context, o *options) error {
	started := time.Now()
	dialing, done := context.WithTimeout(ctx, o.limit)
	defer done()
	var up atomic.Int64
	var dials sync.WaitGroup
	connections := make([]*grpc.ClientConn, o.connections)
	turns := make(chan struct{}, 64) // more at once would only fill the server's listen backlog
	for number := range connections {
		// Small buffers: it is the server's memory that is looked at, and this program runs beside it.
		c, err := dial(o, number, grpc.WithReadBufferSize(1<<10), grpc.WithWriteBufferSize(1<<10))
		if err != nil {
			return err
		}
		defer c.connection.Close()
		connections[number] = c.connection
		turns <- struct{}{}
		dials.Go(func() {
			defer func() { <-turns }()
			if ready(dialing, c.connection) {
				up.Add(1)
			}
		})
	}
	dials.Wait()
	emit(map[string]any{"op": "connected", "connections": o.connections, "up": up.Load(), "seconds": rounded(time.Since(started).Seconds())})
	o.plan.Windows = 1
	o.plan.Seconds = o.hold
	meter := newMeter(o.plan)
	meter.run(ctx)
	stillUp := 0
	for _, connection := range connections {
		if connection.GetState() == connectivity.Ready {
			stillUp++
		}
	}
	meter.extra("up", up.Load())
	meter.extra("still_up", stillUp)
	meter.finish()
	if stillUp < o.connections {
		return fmt.Errorf("%d of %d connections were up, %d at the end", up.Load(), o.connections, stillUp)
	}
	return nil
}

// ready waits until the SETTINGS of both sides were exchanged.
func ready(ctx context.Context, connection *grpc.ClientConn) bool {
	connection.Connect()
	for state := connection.GetState(); state != connectivity.Ready; state = connection.GetState() {
		if state == connectivity.TransientFailure || !connection.WaitForStateChange(ctx, state) {
			return false // refused, or not answered in time
		}
	}
	return true
}

// streams holds o.streams long-polling ReceiveMessage streams at once on a topic without messages, and checks how each ends.
// Every stream makes one request; its message is never acknowledged.
func streams(ctx context.Context, o *options) error {
	c, err := consumers(ctx, o)
	if err != nil {
		return err
	}
	defer c.end()
	work, finished := context.WithCancel(ctx)
	var open, peak, proper atomic.Int64
	var all sync.WaitGroup
	reasons := struct {
		sync.Mutex
		count map[string]int
	}{count: map[string]int{}}
	for number := 0; number < o.streams; number++ {
		client := c.clients[number%len(c.clients)]
		all.Go(func() {
			started := time.Now()
			counted := false
			messages, err := c.receive(work, client, func() {
				counted = true
				for now := open.Add(1); ; {
					if before := peak.Load(); before >= now || peak.CompareAndSwap(before, now) {
						break
					}
				}
			})
			if counted {
				open.Add(-1)
			}
			if err == nil {
				proper.Add(1)
				c.meter.done(len(messages), time.Since(started))
				return
			}
			c.meter.failed(err.Error())
			reasons.Lock()
			defer reasons.Unlock()
			if code := status.Code(err); code != codes.Unknown {
				reasons.count[code.String()]++
			} else {
				reasons.count[err.Error()]++
			}
		})
	}
	go func() { all.Wait(); finished() }()
	o.plan.Windows = 0
	c.meter.run(work)
	all.Wait()
	c.meter.extra("connections", o.connections)
	c.meter.extra("streams", o.streams)
	c.meter.extra("open_at_once", peak.Load())
	c.meter.extra("ended_properly", proper.Load())
	c.meter.extra("failures", reasons.count)
	c.meter.finish()
	if peak.Load() < int64(o.streams) || proper.Load() < int64(o.streams) {
		return fmt.Errorf("%d of %d streams were open at once, %d ended properly", peak.Load(), o.streams, proper.Load())
	}
	return nil
}
