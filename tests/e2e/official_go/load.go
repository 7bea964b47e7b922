package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

// Load for as long as somebody else disturbs the cluster.
//
//	scenarios --endpoint … send TOPIC RECORD STOP LANES
//	scenarios --endpoint … receive TOPIC GROUP RECORD STOP
//
// Each of the LANES sends one message after the other, in a message group of its own, and repeats it until it is
// acknowledged. Both go on until the file STOP is there. Records have a line for each acknowledgement and each
// delivery, separated by tabs: lane, number, message id, seconds since the epoch; a number is acknowledged in order.

const (
	retryPause  = 200 * time.Millisecond
	loadLease   = 15 * time.Second
	sendPause   = 20 * time.Millisecond
	batch       = 16
	failuresMax = 30
)

var failures atomic.Int64

func note(what string, err error) {
	if failures.Add(1) <= failuresMax {
		fmt.Fprintf(os.Stderr, "%.3f %s: %v\n", seconds(), what, err)
	}
	time.Sleep(retryPause)
}

func seconds() float64 { return float64(time.Now().UnixMilli()) / 1000 }

func stopped(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// retried starts a client: the official one gives up at once when it has no route.
func retried(start func() error) {
	for err := start(); err != nil; err = start() {
		note("start", err)
	}
}

func loadSend(topic, record, stop string, lanes int) {
	file, err := os.Create(record)
	must(err, "record")
	var producer rmq.Producer
	retried(func() (err error) {
		if producer, err = rmq.NewProducer(config(""), rmq.WithTopics(topic)); err == nil {
			err = producer.Start()
		}
		return err
	})
	var writing sync.Mutex
	var all sync.WaitGroup
	for lane := range lanes {
		all.Add(1)
		go func() {
			defer all.Done()
			for number := 0; !stopped(stop); number++ {
				message := &rmq.Message{Topic: topic, Body: fmt.Appendf(nil, "%d %d", lane, number)}
				message.SetMessageGroup(fmt.Sprintf("lane-%d", lane))
				receipts, err := producer.Send(context.Background(), message)
				for ; err != nil; receipts, err = producer.Send(context.Background(), message) {
					note("send", err)
				}
				writing.Lock()
				fmt.Fprintf(file, "%d\t%d\t%s\t%.3f\n", lane, number, receipts[0].MessageID, seconds())
				writing.Unlock()
				time.Sleep(sendPause)
			}
		}()
	}
	all.Wait()
	must(producer.GracefulStop(), "stop")
}

func loadReceive(topic, group, record, stop string) {
	file, err := os.Create(record)
	must(err, "record")
	var consumer rmq.SimpleConsumer
	retried(func() (err error) {
		consumer, err = rmq.NewSimpleConsumer(config(group), rmq.WithSimpleAwaitDuration(await),
			rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}))
		if err == nil {
			err = consumer.Start()
		}
		return err
	})
	records := bufio.NewWriter(file)
	var writing sync.Mutex
	var all sync.WaitGroup
	for range 4 {
		all.Add(1)
		go func() {
			defer all.Done()
			for !stopped(stop) {
				views, err := consumer.Receive(context.Background(), batch, loadLease)
				if err != nil && !strings.Contains(err.Error(), "MESSAGE_NOT_FOUND") {
					note("receive", err)
				}
				for _, view := range views {
					lane, number, _ := strings.Cut(string(view.GetBody()), " ")
					writing.Lock()
					fmt.Fprintf(records, "%s\t%s\t%s\t%.3f\n", lane, number, view.GetMessageId(), seconds())
					records.Flush()
					writing.Unlock()
					if err := consumer.Ack(context.Background(), view); err != nil {
						note("ack", err)
					}
				}
			}
		}()
	}
	all.Wait()
	must(consumer.GracefulStop(), "stop")
}

// load runs what the arguments say; false: they name scenarios.
func load(arguments []string) bool {
	switch {
	case len(arguments) == 5 && arguments[0] == "send":
		lanes, err := strconv.Atoi(arguments[4])
		must(err, "lanes")
		loadSend(arguments[1], arguments[2], arguments[3], lanes)
	case len(arguments) == 5 && arguments[0] == "receive":
		loadReceive(arguments[1], arguments[2], arguments[3], arguments[4])
	default:
		return false
	}
	return true
}
