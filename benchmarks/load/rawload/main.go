// Rawload drives apache.rocketmq.v2.MessagingService as an official client does, with its headers, Telemetry settings and
// message properties, and RocketMQ's remoting protocol as its Java producer does. It shares the CPUs with the servers that it
// measures, so it is made to cost little: a connection and all that is in flight on it belong to one goroutine.
//
//	rawload send      --endpoint=H:P --topic=T --inflight=32 --size=1024 --batch=1 --warmup=3 --windows=3 --seconds=4 --pids=master:123
//	rawload remoting  --endpoint=H:P --topic=T ...          the same by RocketMQ's remoting protocol; H:P is a NameServer
//	rawload subscribe --endpoint=H:P --topic=T --group=G    before the sends that the group is to drain
//	rawload drain     --endpoint=H:P --topic=T --group=G --receivers=8 --count=30000
//	rawload idle      --endpoint=H:P --connections=2000 --hold=10
//	rawload streams   --endpoint=H:P --topic=T --group=G --connections=100 --streams=10000 --poll=20
//
// Standard output holds one JSON object for each measurement window and a last one with "op":"total".
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// options are the flags of all operations; each operation reads those that concern it.
type options struct {
	endpoint, topic, group, tag string
	inflight, size, batch       int
	connections, receivers      int
	streams, topics             int
	count                       int64
	ackBatch                    bool
	kind                        string
	delay                       time.Duration
	timeout, poll, hold, limit  time.Duration
	invisible                   time.Duration
	plan                        Plan
}

// seconds is a flag value in seconds, with or without a fraction.
type seconds struct{ target *time.Duration }

func (s seconds) String() string {
	if s.target == nil {
		return "0"
	}
	return fmt.Sprint(s.target.Seconds())
}

func (s seconds) Set(text string) error {
	var value float64
	if _, err := fmt.Sscan(text, &value); err != nil {
		return errors.New("a number of seconds is expected")
	}
	*s.target = time.Duration(value * float64(time.Second))
	return nil
}

// processes is the flag value name:PID,name:PID,…
type processes struct{ target *map[string]int }

func (p processes) String() string { return "" }

func (p processes) Set(text string) error {
	*p.target = map[string]int{}
	for _, entry := range strings.Split(text, ",") {
		if entry == "" {
			continue
		}
		name, number, found := strings.Cut(entry, ":")
		pid := 0
		if _, err := fmt.Sscan(number, &pid); err != nil || !found {
			return fmt.Errorf("%q is not name:PID", entry)
		}
		(*p.target)[name] = pid
	}
	return nil
}

func parse(operation string, arguments []string) (*options, error) {
	o := &options{
		timeout: 10 * time.Second, poll: 5 * time.Second, hold: 10 * time.Second, limit: 300 * time.Second,
		invisible: 60 * time.Second,
		plan:      Plan{Operation: operation, Seconds: 5 * time.Second},
	}
	f := flag.NewFlagSet("rawload "+operation, flag.ContinueOnError)
	f.SetOutput(os.Stdout)
	f.StringVar(&o.endpoint, "endpoint", "127.0.0.1:8081", "host:port of a broker or proxy")
	f.BoolVar(&dialing.tls, "tls", false, "TLS, with whatever certificate the server shows (not remoting)")
	f.StringVar(&dialing.accessKey, "access-key", "", "name of the user who signs each call; empty: nobody (not remoting)")
	f.StringVar(&dialing.secretKey, "secret-key", "", "that user's secret")
	f.StringVar(&dialing.source, "source", "", "local address to connect from, for servers that count by address")
	f.StringVar(&o.topic, "topic", "bench", "topic to send to or receive from")
	f.IntVar(&o.topics, "topics", 1, "above 1: sends go round TOPIC-00000, TOPIC-00001, … and all their queues (send)")
	f.StringVar(&o.group, "group", "bench-group", "consumer group (drain, streams)")
	f.StringVar(&o.tag, "tag", "bench", "tag of each message; empty for none")
	f.IntVar(&o.inflight, "inflight", 32, "requests kept in flight (send, remoting)")
	f.IntVar(&o.size, "size", 1024, "bytes of a message's body (send, remoting)")
	f.IntVar(&o.batch, "batch", 0, "messages of a request: 1 by default in sends, 32 in drain and streams")
	f.IntVar(&o.connections, "connections", 1, "HTTP/2 connections (not remoting)")
	f.IntVar(&o.receivers, "receivers", 8, "receivers, each with one ReceiveMessage at a time (drain)")
	f.IntVar(&o.streams, "streams", 10000, "ReceiveMessage streams open at once (streams)")
	f.Int64Var(&o.count, "count", 0, "acknowledged messages after which drain ends; 0 for the end of its windows")
	f.StringVar(&o.kind, "kind", "normal", "normal, fifo, delay or transaction: of the topic's type; a transaction is sent and committed (send)")
	f.Var(seconds{&o.delay}, "delay", "how long a message of the kind delay waits, seconds (send)")
	f.BoolVar(&o.ackBatch, "ack-batch", false, "acknowledge all messages of a receive in one request (drain)")
	f.Var(seconds{&o.timeout}, "timeout", "deadline of a request, seconds")
	f.Var(seconds{&o.poll}, "poll", "long polling time of a receive, seconds")
	f.Var(seconds{&o.invisible}, "invisible", "invisible duration of a receive, seconds")
	f.Var(seconds{&o.hold}, "hold", "how long idle keeps its connections, seconds")
	f.Var(seconds{&o.limit}, "limit", "drain fails when it has not ended by then, seconds")
	f.Var(seconds{&o.plan.Warmup}, "warmup", "load before the first window, seconds")
	f.Var(seconds{&o.plan.Seconds}, "seconds", "length of a window, seconds")
	f.IntVar(&o.plan.Windows, "windows", -1, "measured windows: 1 by default in sends; 0 for one window until the work is done")
	f.Var(processes{&o.plan.Pids}, "pids", "processes whose CPU time is reported, name:PID,…")
	f.Usage = func() {} // the whole list of flags under one mistyped flag hides what is wrong
	if err := f.Parse(arguments); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			f.PrintDefaults()
		}
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unknown argument %q", f.Arg(0))
	}
	if kinds[o.kind] == 0 {
		return nil, fmt.Errorf("--kind=%s: use normal, fifo, delay or transaction", o.kind)
	}
	if o.kind == "transaction" && o.batch > 1 {
		return nil, errors.New("--kind=transaction: one message a request, --batch=1")
	}
	isSend := operation == "send" || operation == "remoting"
	if o.batch == 0 && isSend {
		o.batch = 1
	} else if o.batch == 0 {
		o.batch = 32
	}
	if operation == "subscribe" {
		o.poll = min(o.poll, time.Second)
	}
	if o.plan.Windows < 0 {
		o.plan.Windows = 0
		if isSend {
			o.plan.Windows = 1
		}
	}
	return o, nil
}

func run(ctx context.Context, arguments []string) error {
	operations := map[string]func(context.Context, *options) error{
		"send": send, "remoting": sendRemoting, "subscribe": subscribe, "drain": drain, "idle": idle, "streams": streams,
	}
	if len(arguments) == 0 || operations[arguments[0]] == nil {
		return errors.New("usage: rawload send|remoting|subscribe|drain|idle|streams --help")
	}
	o, err := parse(arguments[0], arguments[1:])
	if err != nil {
		return err
	}
	return operations[arguments[0]](ctx, o)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "rawload:", err)
		os.Exit(1)
	}
}
