package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Plan says when to measure: after Warmup, Windows windows of Seconds each; with no windows, one until the work is done.
type Plan struct {
	Operation       string
	Warmup, Seconds time.Duration
	Windows         int
	Pids            map[string]int
}

// window is what was counted between two instants.
type window struct {
	messages, errors atomic.Int64
	latencies        histogram
}

// row is one line of output; field order is the order printed.
type row struct {
	Op        string             `json:"op"`
	Of        string             `json:"of,omitempty"`
	Window    *int               `json:"window,omitempty"`
	Windows   *int               `json:"windows,omitempty"`
	Seconds   float64            `json:"seconds"`
	Messages  int64              `json:"messages"`
	Errors    int64              `json:"errors"`
	Rate      float64            `json:"msg_s"`
	P50       *float64           `json:"p50_ms"`
	P99       *float64           `json:"p99_ms"`
	P999      *float64           `json:"p999_ms"`
	CPU       map[string]float64 `json:"cpu_s"`
	Own       float64            `json:"own_cpu_s"`
	Strangers float64            `json:"stranger_cpu_s"`
	Extra     map[string]any     `json:"extra,omitempty"`
}

// Meter counts answers into the window that is open when they arrive. done and failed may be called by all goroutines.
type Meter struct {
	plan    Plan
	current atomic.Pointer[window]
	total   window
	sum     row
	first   sync.Once
}

func newMeter(plan Plan) *Meter {
	m := &Meter{plan: plan, sum: row{Op: "total", Of: plan.Operation, CPU: map[string]float64{}}}
	m.current.Store(&window{})
	return m
}

// done counts `messages` whose one request took `latency`.
func (m *Meter) done(messages int, latency time.Duration) {
	w := m.current.Load()
	w.messages.Add(int64(messages))
	w.latencies.add(latency)
}

// failed counts one request that was not answered OK; the first reason is printed at once.
func (m *Meter) failed(reason string) {
	m.current.Load().errors.Add(1)
	m.first.Do(func() { fmt.Fprintln(os.Stderr, "rawload: first error:", reason) })
}

// run measures and prints the windows. It returns when they are over, or early when `work` has ended.
func (m *Meter) run(work context.Context) {
	wait(work, m.plan.Warmup)
	warmup := m.current.Load()
	for number := 0; number < max(1, m.plan.Windows) && (work.Err() == nil || number == 0); number++ {
		w := &window{}
		before, started := readCPU(m.plan.Pids), time.Now()
		m.current.Store(w)
		if m.plan.Windows > 0 {
			wait(work, m.plan.Seconds)
		} else {
			<-work.Done()
		}
		elapsed := time.Since(started)
		m.current.Store(&window{})
		m.report(number, w, elapsed, before)
	}
	if errors := warmup.errors.Load(); errors > 0 {
		m.extra("warmup_errors", errors)
	}
}

func (m *Meter) report(number int, w *window, elapsed time.Duration, before cpuReading) {
	cpu, own, strangers := readCPU(m.plan.Pids).since(before)
	line := filled(row{Op: m.plan.Operation, Window: &number, Seconds: elapsed.Seconds(), CPU: cpu, Own: own, Strangers: strangers}, w)
	emit(line)
	m.total.messages.Add(line.Messages)
	m.total.errors.Add(line.Errors)
	m.total.latencies.merge(&w.latencies)
	m.sum.Seconds += elapsed.Seconds()
	m.sum.Own += own
	m.sum.Strangers += strangers
	windows := number + 1
	m.sum.Windows = &windows
	for name, value := range cpu {
		m.sum.CPU[name] += value
	}
}

// extra adds a fact of one operation to the last line. Not for use while others call it.
func (m *Meter) extra(name string, value any) {
	if m.sum.Extra == nil {
		m.sum.Extra = map[string]any{}
	}
	m.sum.Extra[name] = value
}

// finish prints the line of all windows together.
func (m *Meter) finish() { emit(filled(m.sum, &m.total)) }

func filled(r row, w *window) row {
	r.Messages, r.Errors = w.messages.Load(), w.errors.Load()
	r.Rate = math.Round(float64(r.Messages) / max(r.Seconds, 1e-9))
	r.Seconds, r.Own, r.Strangers = rounded(r.Seconds), rounded(r.Own), rounded(r.Strangers)
	r.P50, r.P99, r.P999 = w.latencies.quantileMs(.5), w.latencies.quantileMs(.99), w.latencies.quantileMs(.999)
	cpu := make(map[string]float64, len(r.CPU))
	for name, value := range r.CPU {
		cpu[name] = rounded(value)
	}
	r.CPU = cpu
	return r
}

func rounded(value float64) float64 { return math.Round(value*1000) / 1000 }

func emit(line any) {
	if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
		panic(err) // figures that nobody can read: there is no point in going on
	}
}

func wait(ctx context.Context, time_ time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(time_):
	}
}
