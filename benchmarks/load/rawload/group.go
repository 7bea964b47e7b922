package main

import (
	"context"
	"errors"
	"sync"
)

// group runs clients, each on the goroutine that its connection belongs to from then on.
type group struct {
	all    sync.WaitGroup
	failed context.CancelCauseFunc // ends the work of all
}

// run serves one client until `load` returns, and ends it.
func (g *group) run(c *client, load func() error) {
	g.all.Go(func() {
		if err := load(); err != nil {
			g.failed(err)
			c.close()
			return
		}
		c.end()
	})
}

func (g *group) wait() { g.all.Wait() }

// failure is what ended the work too early, if anything did.
func failure(work context.Context) error {
	if cause := context.Cause(work); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}
