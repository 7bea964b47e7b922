package main

import (
	"context"
	"fmt"
	"reflect"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

const (
	await      = 5 * time.Second
	limit      = 60 * time.Second
	leaseLong  = 60 * time.Second
	leaseShort = 10 * time.Second

	// Body of a message that only ends a poll; handlers take it and leave it out.
	wake = "wake"
)

// Names are those of tests/e2e/scenarios.py; each scenario's topic and group are called as the scenario.
var scenarios map[string]func(name string) string

func init() {
	scenarios = map[string]func(string) string{
		"start_stop":              startStop,
		"round_trip":              roundTrip,
		"acknowledged_once":       acknowledgedOnce,
		"lease_end_redelivers":    leaseEndRedelivers,
		"changed_lease":           changedLease,
		"given_back_at_once":      givenBackAtOnce,
		"empty_receive":           emptyReceive,
		"receive_wakes":           receiveWakes,
		"tag_filter":              tagFilter,
		"transaction_ends":        transactionEnds,
		"transaction_asked_after": transactionAskedAfter,
		"delayed":                 delayed,
		"recalled":                recalled,
		"fifo_order":              fifoOrder,
		"shared_group":            sharedGroup,
		"concurrent_sends":        concurrentSends,
		"push_all":                pushAll,
		"push_retry":              pushRetry,
		"push_dead_letter":        pushDeadLetter,
		"fifo_retry_blocks":       fifoRetryBlocks,
		"fifo_dead_letter":        fifoDeadLetter,
		"large_body":              largeBody,
		"refused_messages":        refusedMessages,
		"unknown_topic":           unknownTopic,
		"client_restart":          clientRestart,
		"master_restart":          masterRestart,
		"change_of_master":        changeOfMaster,
		"dead_master":             deadMaster,
	}
}

func config(group string) *rmq.Config {
	return &rmq.Config{
		Endpoint:      endpoint,
		ConsumerGroup: group,
		Credentials:   &credentials.SessionCredentials{AccessKey: "access-key", AccessSecret: "secret-key"},
	}
}

func newProducer(topic string) rmq.Producer {
	producer, err := rmq.NewProducer(config(""), rmq.WithTopics(topic))
	must(err, "new producer")
	must(producer.Start(), "start producer")
	return producer
}

func newSimpleConsumer(topic, group string, filter *rmq.FilterExpression) rmq.SimpleConsumer {
	consumer, err := rmq.NewSimpleConsumer(config(group),
		rmq.WithSimpleAwaitDuration(await),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: filter}))
	must(err, "new simple consumer")
	must(consumer.Start(), "start simple consumer")
	return consumer
}

func newPushConsumer(topic, group string, consume func(*rmq.MessageView) rmq.ConsumerResult) rmq.PushConsumer {
	consumer, err := rmq.NewPushConsumer(config(group),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: func(view *rmq.MessageView) rmq.ConsumerResult {
			if string(view.GetBody()) == wake {
				return rmq.SUCCESS
			}
			return consume(view)
		}}))
	must(err, "new push consumer")
	must(consumer.Start(), "start push consumer")
	return consumer
}

func message(topic, body string) *rmq.Message {
	return &rmq.Message{Topic: topic, Body: []byte(body)}
}

func send(producer rmq.Producer, message *rmq.Message) string {
	receipts, err := producer.Send(context.Background(), message)
	must(err, "send")
	expect(len(receipts) == 1, "%d receipts of one message", len(receipts))
	return receipts[0].MessageID
}

// sendMany sends `count` numbered messages, `inflight` at a time, and gives their ids.
func sendMany(producer rmq.Producer, topic string, count, inflight int) map[string]bool {
	var (
		numbers  atomic.Int64
		lock     sync.Mutex
		ids      = map[string]bool{}
		problems []error
		senders  sync.WaitGroup
	)
	for range inflight {
		senders.Add(1)
		go func() {
			defer senders.Done()
			for {
				number := numbers.Add(1)
				if number > int64(count) {
					return
				}
				receipts, err := producer.Send(context.Background(), message(topic, fmt.Sprintf("body %d", number)))
				lock.Lock()
				if err != nil {
					problems = append(problems, err)
				} else {
					ids[receipts[0].MessageID] = true
				}
				lock.Unlock()
			}
		}()
	}
	senders.Wait()
	expect(len(problems) == 0, "%d sends failed, e.g. %v", len(problems), problems)
	expect(len(ids) == count, "%d ids of %d messages", len(ids), count)
	return ids
}

// receive gives what one receive brings; an empty poll is an error with code 40401 for this client.
func receive(consumer rmq.SimpleConsumer, most int32, lease time.Duration) []*rmq.MessageView {
	views, err := consumer.Receive(context.Background(), most, lease)
	if codeOf(err) == int32(v2.Code_MESSAGE_NOT_FOUND) {
		return nil
	}
	must(err, "receive")
	return views
}

// receiveSome receives and acknowledges until `count` different messages are there.
func receiveSome(consumer rmq.SimpleConsumer, count int) map[string]*rmq.MessageView {
	found := map[string]*rmq.MessageView{}
	for deadline := time.Now().Add(limit); len(found) < count; {
		expect(time.Now().Before(deadline), "%d of %d messages within %v", len(found), count, limit)
		for _, view := range receive(consumer, 32, leaseLong) {
			expect(found[view.GetMessageId()] == nil, "message %s twice", view.GetMessageId())
			must(consumer.Ack(context.Background(), view), "ack")
			found[view.GetMessageId()] = view
		}
	}
	return found
}

func receiveOne(consumer rmq.SimpleConsumer, lease time.Duration, within time.Duration) *rmq.MessageView {
	for deadline := time.Now().Add(within); ; {
		views := receive(consumer, 1, lease)
		if len(views) > 0 {
			return views[0]
		}
		expect(time.Now().Before(deadline), "no message within %v", within)
	}
}

func stop(client interface{ GracefulStop() error }) {
	must(client.GracefulStop(), "stop")
}

// stopPush stops a push consumer, which waits for the end of its 20 s polls; a message ends them sooner.
func stopPush(push rmq.PushConsumer, producer rmq.Producer, topic string, groups ...string) {
	woken := make(chan error, 1)
	go func() {
		time.Sleep(500 * time.Millisecond)
		var problem error
		if len(groups) == 0 {
			_, problem = producer.Send(context.Background(), message(topic, wake))
		}
		for _, group := range groups {
			one := message(topic, wake)
			one.SetMessageGroup(group)
			if _, err := producer.Send(context.Background(), one); err != nil {
				problem = err
			}
		}
		woken <- problem
	}()
	stop(push)
	must(<-woken, "send")
}

func waitUntil(what string, holds func() bool) {
	for deadline := time.Now().Add(limit); !holds(); time.Sleep(20 * time.Millisecond) {
		expect(time.Now().Before(deadline), "not within %v: %s", limit, what)
	}
}

func keysOf[V any](some map[string]V) []string {
	keys := make([]string, 0, len(some))
	for key := range some {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}

// A push consumer stopped within its first second may begin a poll after its goodbye.
func startStop(name string) string {
	producer := newProducer(name)
	stop(newSimpleConsumer(name, name, rmq.SUB_ALL))
	push := newPushConsumer(name, name+"-push", func(*rmq.MessageView) rmq.ConsumerResult { return rmq.SUCCESS })
	time.Sleep(3 * time.Second)
	stopPush(push, producer, name)
	stop(producer)
	return ""
}

func roundTrip(name string) string {
	producer := newProducer(name)
	sent := map[string]int{}
	for number := range 100 {
		one := message(name, fmt.Sprintf("body %d grün", number))
		one.SetTag(fmt.Sprintf("tag-%d", number%3))
		one.SetKeys(fmt.Sprintf("key-%d", number), "second-key")
		one.AddProperty("number", fmt.Sprint(number))
		one.AddProperty("größe", "weiß")
		sent[send(producer, one)] = number
	}
	consumer := newSimpleConsumer(name, name, rmq.SUB_ALL)
	found := receiveSome(consumer, 100)
	for id, number := range sent {
		view := found[id]
		expect(view != nil, "message %d is missing", number)
		expect(string(view.GetBody()) == fmt.Sprintf("body %d grün", number), "body %q", view.GetBody())
		expect(*view.GetTag() == fmt.Sprintf("tag-%d", number%3), "tag %q", *view.GetTag())
		keys := view.GetKeys()
		expect(reflect.DeepEqual(keys, []string{fmt.Sprintf("key-%d", number), "second-key"}), "keys %v", keys)
		properties := map[string]string{"number": fmt.Sprint(number), "größe": "weiß"}
		expect(reflect.DeepEqual(view.GetProperties(), properties), "properties %v", view.GetProperties())
		expect(view.GetDeliveryAttempt() == 1, "attempt %d", view.GetDeliveryAttempt())
		expect(view.GetTopic() == name, "topic %s", view.GetTopic())
		expect(view.GetBornHost() != nil && *view.GetBornHost() != "", "no born host")
		expect(time.Since(*view.GetBornTimestamp()).Abs() < 5*time.Minute, "born %v", view.GetBornTimestamp())
	}
	stop(producer)
	stop(consumer)
	return "100 messages"
}

func acknowledgedOnce(name string) string {
	producer := newProducer(name)
	sendMany(producer, name, 10, 1)
	consumer := newSimpleConsumer(name, name, rmq.SUB_ALL)
	for count := 0; count < 10; {
		for _, view := range receive(consumer, 32, leaseShort) {
			must(consumer.Ack(context.Background(), view), "ack")
			count++
		}
	}
	for deadline := time.Now().Add(leaseShort + time.Second); time.Now().Before(deadline); {
		again := receive(consumer, 32, leaseShort)
		expect(len(again) == 0, "%d messages came again", len(again))
	}
	stop(producer)
	stop(consumer)
	return ""
}

func leaseEndRedelivers(name string) string {
	producer := newProducer(name)
	id := send(producer, message(name, "once more"))
	consumer := newSimpleConsumer(name, name, rmq.SUB_ALL)
	first := receiveOne(consumer, leaseShort, limit)
	received := time.Now()
	second := receiveOne(consumer, leaseShort, limit)
	waited := time.Since(received)
	expect(first.GetMessageId() == id && second.GetMessageId() == id, "another message")
	expect(first.GetDeliveryAttempt() == 1, "first attempt is %d", first.GetDeliveryAttempt())
	expect(second.GetDeliveryAttempt() == 2, "second attempt is %d", second.GetDeliveryAttempt())
	expect(first.GetReceiptHandle() != second.GetReceiptHandle(), "the same handle again")
	expect(waited > 9*time.Second && waited < 15*time.Second, "again after %v", waited)
	must(consumer.Ack(context.Background(), second), "ack")
	stop(producer)
	stop(consumer)
	return fmt.Sprintf("again after %.1f s", waited.Seconds())
}

// The client does not look at the status of an ack, so what an ack did is seen by what comes again.
func changedLease(name string) string {
	producer := newProducer(name)
	id := send(producer, message(name, "changed"))
	consumer := newSimpleConsumer(name, name, rmq.SUB_ALL)
	view := receiveOne(consumer, leaseLong, limit)
	before := *view
	must(consumer.ChangeInvisibleDuration(view, 3*time.Second), "change")
	expect(view.GetReceiptHandle() != before.GetReceiptHandle(), "the handle did not change")
	must(consumer.Ack(context.Background(), &before), "ack with the old handle")
	again := receiveOne(consumer, leaseLong, 10*time.Second)
	expect(again.GetMessageId() == id && again.GetDeliveryAttempt() == 2, "attempt %d", again.GetDeliveryAttempt())
	must(consumer.ChangeInvisibleDuration(again, 3*time.Second), "change")
	must(consumer.Ack(context.Background(), again), "ack with the new handle")
	more := receive(consumer, 1, leaseLong)
	expect(len(more) == 0, "an acknowledged message came again")
	stop(producer)
	stop(consumer)
	return ""
}

func givenBackAtOnce(name string) string {
	producer := newProducer(name)
	send(producer, message(name, "given back"))
	consumer := newSimpleConsumer(name, name, rmq.SUB_ALL)
	for attempt := int32(1); attempt <= 3; attempt++ {
		asked := time.Now()
		view := receiveOne(consumer, leaseLong, limit)
		expect(attempt == 1 || time.Since(asked) < 3*time.Second, "again after %v", time.Since(asked))
		expect(view.GetDeliveryAttempt() == attempt, "attempt %d is %d", attempt, view.GetDeliveryAttempt())
		if attempt < 3 {
			must(consumer.ChangeInvisibleDuration(view, 0), "change")
		} else {
			must(consumer.Ack(context.Background(), view), "ack")
		}
	}
	stop(producer)
	stop(consumer)
	return ""
}

func emptyReceive(name string) string {
	consumer := newSimpleConsumer(name, name, rmq.SUB_ALL)
	started := time.Now()
	views, err := consumer.Receive(context.Background(), 32, leaseLong)
	waited := time.Since(started)
	expect(len(views) == 0, "%d messages of an empty topic", len(views))
	expect(codeOf(err) == int32(v2.Code_MESSAGE_NOT_FOUND), "an empty receive: %v", err)
	// The client does not say how long to poll; the broker takes it from the deadline, await + 3 s.
	expect(waited > 4500*time.Millisecond && waited < 8*time.Second, "an empty receive took %v", waited)
	stop(consumer)
	return fmt.Sprintf("%.1f s", waited.Seconds())
}

func receiveWakes(name string) string {
	producer := newProducer(name)
	consumer := newSimpleConsumer(name, name, rmq.SUB_ALL)
	type received struct {
		views []*rmq.MessageView
		err   error
		at    time.Time
	}
	poll := make(chan received, 1)
	go func() {
		views, err := consumer.Receive(context.Background(), 32, leaseLong)
		poll <- received{views, err, time.Now()}
	}()
	time.Sleep(1500 * time.Millisecond)
	sent := time.Now()
	id := send(producer, message(name, "wakes"))
	result := <-poll
	must(result.err, "receive")
	took := result.at.Sub(sent)
	expect(len(result.views) == 1 && result.views[0].GetMessageId() == id, "other messages")
	expect(took < 2*time.Second, "delivered after %v", took)
	must(consumer.Ack(context.Background(), result.views[0]), "ack")
	stop(producer)
	stop(consumer)
	return fmt.Sprintf("%d ms", took.Milliseconds())
}

func tagFilter(name string) string {
	producer := newProducer(name)
	for number := range 30 {
		one := message(name, "tagged")
		one.SetTag(string(rune('a' + number%3)))
		send(producer, one)
	}
	consumer := newSimpleConsumer(name, name, rmq.NewFilterExpression("a || b"))
	counts := map[string]int{}
	for _, view := range receiveSome(consumer, 20) {
		counts[*view.GetTag()]++
	}
	expect(counts["a"] == 10 && counts["b"] == 10, "tags %v", counts)
	more := receive(consumer, 32, leaseLong)
	expect(len(more) == 0, "%d messages beyond the filter", len(more))
	stop(producer)
	stop(consumer)
	return ""
}

func newTransactionProducer(topic string, check func(*rmq.MessageView) rmq.TransactionResolution) rmq.Producer {
	producer, err := rmq.NewProducer(config(""),
		rmq.WithTransactionChecker(&rmq.TransactionChecker{Check: check}), rmq.WithTopics(topic))
	must(err, "new producer")
	must(producer.Start(), "start producer")
	return producer
}

func sendHalf(producer rmq.Producer, half *rmq.Message, transaction rmq.Transaction) string {
	receipts, err := producer.SendWithTransaction(context.Background(), half, transaction)
	must(err, "send half")
	expect(len(receipts) == 1, "%d receipts", len(receipts))
	return receipts[0].MessageID
}

func transactionEnds(name string) string {
	producer := newTransactionProducer(name, func(*rmq.MessageView) rmq.TransactionResolution { return rmq.UNKNOWN })
	committed := map[string]bool{}
	for number := 0; number < 10; number++ {
		transaction := producer.BeginTransaction()
		id := sendHalf(producer, message(name, fmt.Sprintf("body %d", number)), transaction)
		if number%2 == 0 {
			must(transaction.Commit(), "commit")
			committed[id] = true
		} else {
			must(transaction.RollBack(), "roll back")
		}
	}
	consumer := newSimpleConsumer(name, name, rmq.SUB_ALL)
	for id := range receiveSome(consumer, len(committed)) {
		expect(committed[id], "%s was rolled back", id)
	}
	expect(len(receive(consumer, 32, leaseLong)) == 0, "more than was committed")
	stop(producer)
	stop(consumer)
	return ""
}

// It does not know at first, and commits when it is asked again.
func transactionAskedAfter(name string) string {
	var asked atomic.Int32
	producer := newTransactionProducer(name, func(*rmq.MessageView) rmq.TransactionResolution {
		if asked.Add(1) < 2 {
			return rmq.UNKNOWN
		}
		return rmq.COMMIT
	})
	started := time.Now()
	id := sendHalf(producer, message(name, "forgotten"), producer.BeginTransaction())
	consumer := newSimpleConsumer(name, name, rmq.SUB_ALL)
	received := receiveSome(consumer, 1)
	waited := time.Since(started)
	expect(received[id] != nil, "%v instead of %s", keysOf(received), id)
	expect(asked.Load() == 2, "asked %d times", asked.Load())
	expect(len(receive(consumer, 32, leaseLong)) == 0, "committed twice")
	stop(producer)
	stop(consumer)
	return fmt.Sprintf("committed after %.1f s", waited.Seconds())
}

func fifoOrder(name string) string {
	const groups, each = 10, 50
	producer := newProducer(name)
	var senders sync.WaitGroup
	var failed atomic.Value
	for group := range groups {
		senders.Add(1)
		go func() {
			defer senders.Done()
			for number := range each {
				one := message(name, fmt.Sprint(number))
				one.SetMessageGroup(fmt.Sprintf("group-%d", group))
				if _, err := producer.Send(context.Background(), one); err != nil {
					failed.Store(err)
				}
			}
		}()
	}
	senders.Wait()
	expect(failed.Load() == nil, "send: %v", failed.Load())
	var lock sync.Mutex
	seen := map[string][]string{}
	count := 0
	push := newPushConsumer(name, name, func(view *rmq.MessageView) rmq.ConsumerResult {
		lock.Lock()
		defer lock.Unlock()
		group := *view.GetMessageGroup()
		seen[group] = append(seen[group], string(view.GetBody()))
		count++
		return rmq.SUCCESS
	})
	waitUntil("all FIFO messages are handled", func() bool {
		lock.Lock()
		defer lock.Unlock()
		return count >= groups*each
	})
	stopPush(push, producer, name, keysOf(seen)...)
	stop(producer)
	expect(len(seen) == groups, "%d message groups", len(seen))
	for group, bodies := range seen {
		expect(len(bodies) == each, "%s has %d messages", group, len(bodies))
		for number, body := range bodies {
			expect(body == fmt.Sprint(number), "%s out of order: %v", group, bodies)
		}
	}
	return ""
}

func sharedGroup(name string) string {
	const count = 1000
	producer := newProducer(name)
	ids := sendMany(producer, name, count, 16)
	var (
		lock   sync.Mutex
		shared = map[string]int{}
		shares [2]int
		others = map[string]int{}
		all    sync.WaitGroup
		broken atomic.Value
	)
	drain := func(group string, note func(id string) bool) {
		defer all.Done()
		defer func() {
			if problem := recover(); problem != nil {
				broken.Store(fmt.Sprint(problem))
			}
		}()
		consumer := newSimpleConsumer(name, group, rmq.SUB_ALL)
		for done := false; !done; {
			for _, view := range receive(consumer, 32, leaseLong) {
				must(consumer.Ack(context.Background(), view), "ack")
				done = note(view.GetMessageId())
			}
			lock.Lock()
			if strings.HasSuffix(group, "-other") {
				done = len(others) >= count
			} else {
				done = len(shared) >= count
			}
			lock.Unlock()
		}
		stop(consumer)
	}
	all.Add(3)
	for member := range 2 {
		go drain(name, func(id string) bool {
			lock.Lock()
			defer lock.Unlock()
			shared[id]++
			shares[member]++
			return false
		})
	}
	go drain(name+"-other", func(id string) bool {
		lock.Lock()
		defer lock.Unlock()
		others[id]++
		return false
	})
	all.Wait()
	expect(broken.Load() == nil, "%v", broken.Load())
	for _, found := range []map[string]int{shared, others} {
		expect(reflect.DeepEqual(keysOf(found), keysOf(ids)), "other messages than those sent")
		for id, times := range found {
			expect(times == 1, "message %s %d times", id, times)
		}
	}
	expect(shares[0] > 0 && shares[1] > 0, "shares %v", shares)
	stop(producer)
	return fmt.Sprintf("shares %v", shares)
}

func concurrentSends(name string) string {
	const count = 500
	producer := newProducer(name)
	var (
		lock     sync.Mutex
		ids      = map[string]bool{}
		problems []error
		all      sync.WaitGroup
	)
	all.Add(count)
	for number := range count {
		producer.SendAsync(context.Background(), message(name, fmt.Sprint(number)),
			func(_ context.Context, receipts []*rmq.SendReceipt, err error) {
				defer all.Done()
				lock.Lock()
				defer lock.Unlock()
				if err != nil {
					problems = append(problems, err)
				} else {
					ids[receipts[0].MessageID] = true
				}
			})
	}
	all.Wait()
	expect(len(problems) == 0, "%d sends failed, e.g. %v", len(problems), problems)
	expect(len(ids) == count, "%d ids", len(ids))
	consumer := newSimpleConsumer(name, name, rmq.SUB_ALL)
	expect(reflect.DeepEqual(keysOf(receiveSome(consumer, count)), keysOf(ids)), "other messages than those sent")
	stop(producer)
	stop(consumer)
	return ""
}

func pushAll(name string) string {
	const count = 1000
	producer := newProducer(name)
	var lock sync.Mutex
	handled := map[string]int{}
	push := newPushConsumer(name, name, func(view *rmq.MessageView) rmq.ConsumerResult {
		lock.Lock()
		defer lock.Unlock()
		handled[view.GetMessageId()]++
		return rmq.SUCCESS
	})
	ids := sendMany(producer, name, count, 16)
	waitUntil("all messages are handled", func() bool {
		lock.Lock()
		defer lock.Unlock()
		return len(handled) >= count
	})
	stopPush(push, producer, name)
	expect(reflect.DeepEqual(keysOf(handled), keysOf(ids)), "other messages than those sent")
	for id, times := range handled {
		expect(times == 1, "message %s handled %d times", id, times)
	}
	// What the push consumer left unacknowledged would be visible again by now.
	consumer := newSimpleConsumer(name, name, rmq.SUB_ALL)
	for _, left := range receive(consumer, 32, leaseLong) {
		expect(string(left.GetBody()) == wake, "left: %s", left.GetBody())
	}
	stop(consumer)
	stop(producer)
	return ""
}

func pushRetry(name string) string {
	producer := newProducer(name)
	id := send(producer, message(name, "again"))
	var lock sync.Mutex
	var attempts []int32
	var times []time.Time
	push := newPushConsumer(name, name, func(view *rmq.MessageView) rmq.ConsumerResult {
		lock.Lock()
		defer lock.Unlock()
		attempts = append(attempts, view.GetDeliveryAttempt())
		times = append(times, time.Now())
		if view.GetMessageId() != id || len(attempts) == 1 {
			return rmq.FAILURE
		}
		return rmq.SUCCESS
	})
	waitUntil("the message comes again", func() bool {
		lock.Lock()
		defer lock.Unlock()
		return len(attempts) >= 2
	})
	stopPush(push, producer, name)
	stop(producer)
	expect(reflect.DeepEqual(attempts, []int32{1, 2}), "attempts %v", attempts)
	waited := times[1].Sub(times[0])
	expect(waited > 900*time.Millisecond && waited < 5*time.Second, "again after %v", waited)
	return fmt.Sprintf("again after %d ms", waited.Milliseconds())
}

// The group's limit is one retry: two deliveries, then the dead letter queue.
func pushDeadLetter(name string) string {
	producer := newProducer(name)
	id := send(producer, message(name, "never"))
	var handled atomic.Int32
	push := newPushConsumer(name, name, func(*rmq.MessageView) rmq.ConsumerResult {
		handled.Add(1)
		return rmq.FAILURE
	})
	waitUntil("two deliveries", func() bool { return handled.Load() >= 2 })
	deadLetter(name, id)
	expect(handled.Load() == 2, "%d deliveries", handled.Load())
	stopPush(push, producer, name)
	stop(producer)
	return ""
}

// deadLetter finds message `id` in the group's dead letter queue, which exists once something was written to it.
func deadLetter(group, id string) {
	topic := "%DLQ%" + group
	var consumer rmq.SimpleConsumer
	waitUntil("the dead letter queue exists", func() bool {
		var err error
		consumer, err = rmq.NewSimpleConsumer(config(group+"-dead"),
			rmq.WithSimpleAwaitDuration(await),
			rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}))
		must(err, "new simple consumer")
		err = consumer.Start()
		if err != nil {
			time.Sleep(time.Second)
		}
		return err == nil
	})
	dead := receiveOne(consumer, leaseLong, limit)
	expect(dead.GetMessageId() == id, "dead letter %s, not %s", dead.GetMessageId(), id)
	must(consumer.Ack(context.Background(), dead), "ack")
	stop(consumer)
}

func fifoMessages(producer rmq.Producer, topic string, bodies ...string) []string {
	var ids []string
	for _, body := range bodies {
		one := message(topic, body)
		one.SetMessageGroup("one-group")
		ids = append(ids, send(producer, one))
	}
	return ids
}

// The client goes on to the group's next message while a failed one waits for its local retry, so the order between
// the two is not the broker's to keep: only that both are handled, and how often.
func fifoRetryBlocks(name string) string {
	producer := newProducer(name)
	fifoMessages(producer, name, "first", "second")
	var lock sync.Mutex
	seen := map[string]int{}
	push := newPushConsumer(name, name, func(view *rmq.MessageView) rmq.ConsumerResult {
		lock.Lock()
		defer lock.Unlock()
		body := string(view.GetBody())
		seen[body]++
		if body == "first" && seen[body] < 3 {
			return rmq.FAILURE
		}
		return rmq.SUCCESS
	})
	waitUntil("both messages are handled", func() bool {
		lock.Lock()
		defer lock.Unlock()
		return seen["first"] >= 3 && seen["second"] >= 1
	})
	stopPush(push, producer, name, "one-group")
	stop(producer)
	expect(reflect.DeepEqual(seen, map[string]int{"first": 3, "second": 1}), "handled %v", seen)
	return ""
}

func fifoDeadLetter(name string) string {
	producer := newProducer(name)
	ids := fifoMessages(producer, name, "bad", "good")
	var lock sync.Mutex
	seen := map[string]int{}
	push := newPushConsumer(name, name, func(view *rmq.MessageView) rmq.ConsumerResult {
		lock.Lock()
		defer lock.Unlock()
		seen[string(view.GetBody())]++
		if string(view.GetBody()) == "bad" {
			return rmq.FAILURE
		}
		return rmq.SUCCESS
	})
	waitUntil("both messages are handled", func() bool {
		lock.Lock()
		defer lock.Unlock()
		return seen["bad"] >= 2 && seen["good"] >= 1
	})
	deadLetter(name, ids[0])
	stopPush(push, producer, name, "one-group")
	stop(producer)
	expect(reflect.DeepEqual(seen, map[string]int{"bad": 2, "good": 1}), "handled %v", seen)
	return ""
}

// The client itself refuses to write more than 2 MiB in one call, so 4 MiB cannot be shown with it.
func largeBody(name string) string {
	producer := newProducer(name)
	body := make([]byte, 2<<20-4096)
	for place := range body {
		body[place] = byte(place * 31)
	}
	send(producer, &rmq.Message{Topic: name, Body: body})
	consumer := newSimpleConsumer(name, name, rmq.SUB_ALL)
	view := receiveOne(consumer, leaseLong, limit)
	expect(reflect.DeepEqual(view.GetBody(), body), "the body changed, %d bytes", len(view.GetBody()))
	must(consumer.Ack(context.Background(), view), "ack")
	_, err := producer.Send(context.Background(), &rmq.Message{Topic: name, Body: make([]byte, 4<<20+1)})
	expect(err != nil && strings.Contains(err.Error(), "max size=4194304"), "4 MiB + 1: %v", err)
	stop(producer)
	stop(consumer)
	return ""
}

func refusedMessages(name string) string {
	producer := newProducer(name)
	refused := func(what string, code v2.Code, change func(*rmq.Message)) {
		one := message(name, "refused")
		change(one)
		_, err := producer.Send(context.Background(), one)
		expect(codeOf(err) == int32(code), "%s: %v, expected %v", what, err, code)
	}
	refused("empty body", v2.Code_MESSAGE_BODY_EMPTY, func(one *rmq.Message) { one.Body = nil })
	refused("129 properties", v2.Code_MESSAGE_PROPERTIES_TOO_LARGE, func(one *rmq.Message) {
		for number := range 129 {
			one.AddProperty(fmt.Sprintf("p%d", number), "v")
		}
	})
	refused("reserved property", v2.Code_ILLEGAL_MESSAGE_PROPERTY_KEY, func(one *rmq.Message) {
		one.AddProperty("KEYS", "v")
	})
	refused("tag with a bar", v2.Code_ILLEGAL_MESSAGE_TAG, func(one *rmq.Message) { one.SetTag("a|b") })
	refused("blank key", v2.Code_ILLEGAL_MESSAGE_KEY, func(one *rmq.Message) { one.SetKeys(" ") })
	// The client checks the type by the route's accepted types.
	fifo := message(name, "refused")
	fifo.SetMessageGroup("group")
	_, err := producer.Send(context.Background(), fifo)
	expect(err != nil && strings.Contains(err.Error(), "not match"), "FIFO to a NORMAL topic: %v", err)
	send(producer, message(name, "taken"))
	stop(producer)
	return ""
}

func unknownTopic(string) string {
	producer, err := rmq.NewProducer(config(""), rmq.WithTopics("no-such-topic"))
	must(err, "new producer")
	err = producer.Start()
	expect(err != nil && strings.Contains(err.Error(), "TOPIC_NOT_FOUND"), "start with an unknown topic: %v", err)
	known := newProducer("round_trip")
	_, err = known.Send(context.Background(), message("no-such-topic", "lost"))
	expect(codeOf(err) == int32(v2.Code_TOPIC_NOT_FOUND), "send to an unknown topic: %v", err)
	stop(known)
	return ""
}

func delayed(name string) string {
	producer := newProducer(name)
	consumer := newSimpleConsumer(name, name, rmq.SUB_ALL)
	due := time.Now().Add(5 * time.Second)
	one := message(name, "later")
	one.SetDelayTimestamp(due)
	id := send(producer, one)
	past := message(name, "at once")
	past.SetDelayTimestamp(time.Now().Add(-5 * time.Minute))
	send(producer, past)
	first := receiveOne(consumer, leaseLong, 4*time.Second)
	expect(string(first.GetBody()) == "at once", "first came %s", first.GetBody())
	must(consumer.Ack(context.Background(), first), "ack")
	view := receiveOne(consumer, leaseLong, limit)
	late := time.Since(due)
	expect(view.GetMessageId() == id, "another message")
	expect(late >= 0 && late < 2*time.Second, "%v after its time", late)
	expect(view.GetDeliveryTimestamp() != nil && view.GetDeliveryTimestamp().UnixMilli() == due.UnixMilli(),
		"delivery timestamp %v", view.GetDeliveryTimestamp())
	must(consumer.Ack(context.Background(), view), "ack")
	stop(producer)
	stop(consumer)
	return fmt.Sprintf("%d ms after its time", late.Milliseconds())
}

func recalled(name string) string {
	producer := newProducer(name)
	consumer := newSimpleConsumer(name, name, rmq.SUB_ALL)
	var handles, ids []string
	for _, body := range []string{"recalled", "kept"} {
		one := message(name, body)
		one.SetDelayTimestamp(time.Now().Add(5 * time.Second))
		receipts, err := producer.Send(context.Background(), one)
		must(err, "send")
		handles, ids = append(handles, receipts[0].RecallHandle), append(ids, receipts[0].MessageID)
	}
	id, err := producer.Recall(context.Background(), name, handles[0])
	must(err, "recall")
	expect(id == ids[0], "recalled %s, not %s", id, ids[0])
	_, err = producer.Recall(context.Background(), name, handles[0])
	expect(codeOf(err) == int32(v2.Code_NOT_FOUND), "second recall: %v", err)
	view := receiveOne(consumer, leaseLong, limit)
	expect(view.GetMessageId() == ids[1], "the recalled message came")
	must(consumer.Ack(context.Background(), view), "ack")
	_, err = producer.Recall(context.Background(), name, handles[1])
	expect(codeOf(err) == int32(v2.Code_NOT_FOUND), "recall of a delivered message: %v", err)
	more := receive(consumer, 32, leaseLong)
	expect(len(more) == 0, "%d more messages", len(more))
	stop(producer)
	stop(consumer)
	return ""
}

func clientRestart(name string) string {
	first := newProducer(name)
	ids := sendMany(first, name, 20, 4)
	stop(first)
	consumer := newSimpleConsumer(name, name, rmq.SUB_ALL)
	found := map[string]bool{}
	for len(found) < 10 {
		for _, view := range receive(consumer, int32(10-len(found)), leaseLong) {
			must(consumer.Ack(context.Background(), view), "ack")
			found[view.GetMessageId()] = true
		}
	}
	stop(consumer)
	second := newProducer(name)
	for id := range sendMany(second, name, 20, 4) {
		ids[id] = true
	}
	consumer = newSimpleConsumer(name, name, rmq.SUB_ALL)
	for id := range receiveSome(consumer, 30) {
		expect(!found[id], "an acknowledged message came again")
		found[id] = true
	}
	expect(reflect.DeepEqual(keysOf(found), keysOf(ids)), "other messages than those sent")
	stop(second)
	stop(consumer)
	return ""
}

// The clients live on while the broker is killed and started again at the same address.
func masterRestart(name string) string {
	producer := newProducer(name)
	consumer := newSimpleConsumer(name, name, rmq.SUB_ALL)
	var lock sync.Mutex
	handled := map[string]bool{}
	push := newPushConsumer(name, name+"-push", func(view *rmq.MessageView) rmq.ConsumerResult {
		lock.Lock()
		defer lock.Unlock()
		handled[view.GetMessageId()] = true
		return rmq.SUCCESS
	})
	ids := sendMany(producer, name, 20, 4)
	found := map[string]bool{}
	for id := range receiveSome(consumer, 20) {
		found[id] = true
	}
	waitForContinue(name)
	started := time.Now()
	failures := 0
	for sent := 0; sent < 20; {
		receipts, err := producer.Send(context.Background(), message(name, "after"))
		if err == nil {
			ids[receipts[0].MessageID] = true
			sent++
			continue
		}
		failures++
		expect(time.Since(started) < limit, "no send within %v: %v", limit, err)
		time.Sleep(200 * time.Millisecond)
	}
	sending := time.Since(started)
	for len(found) < len(ids) {
		expect(time.Since(started) < 2*limit, "%d of %d messages", len(found), len(ids))
		views, err := consumer.Receive(context.Background(), 32, leaseLong)
		if err != nil {
			time.Sleep(200 * time.Millisecond)
		}
		for _, view := range views {
			if consumer.Ack(context.Background(), view) == nil {
				found[view.GetMessageId()] = true
			}
		}
		// A send that failed for the client may still have been stored.
		for id := range found {
			if !ids[id] {
				delete(found, id)
			}
		}
	}
	receiving := time.Since(started)
	waitUntil("the push consumer handled everything", func() bool {
		lock.Lock()
		defer lock.Unlock()
		for id := range ids {
			if !handled[id] {
				return false
			}
		}
		return true
	})
	pushing := time.Since(started)
	stopPush(push, producer, name)
	stop(consumer)
	stop(producer)
	return fmt.Sprintf("%d failed sends; sends again after %.1f s, receives %.1f s, push %.1f s",
		failures, sending.Seconds(), receiving.Seconds(), pushing.Seconds())
}

// changeOfMaster sends without a pause, and handles, while the starter exchanges a master: between "waits" and
// "continue".
func changeOfMaster(name string) string {
	producer := newProducer(name)
	var lock sync.Mutex
	handled := map[string]bool{}
	push := newPushConsumer(name, name, func(view *rmq.MessageView) rmq.ConsumerResult {
		lock.Lock()
		defer lock.Unlock()
		handled[view.GetMessageId()] = true
		return rmq.SUCCESS
	})
	acknowledged := map[string]bool{}
	failures, goesOn, waits := 0, false, false
	var slowest time.Duration
	for rest := 30; rest > 0; time.Sleep(20 * time.Millisecond) {
		started := time.Now()
		receipts, err := producer.Send(context.Background(), message(name, "body"))
		slowest = max(slowest, time.Since(started))
		if err != nil {
			failures++
			continue
		}
		acknowledged[receipts[0].MessageID] = true
		if !waits && len(acknowledged) == 30 {
			waits = true
			report(map[string]any{"scenario": name, "waits": true})
		}
		select {
		case <-continued[name]:
			goesOn = true
		default:
		}
		if goesOn {
			rest--
		}
	}
	// Three attempts of 3 s each.
	expect(slowest < 10*time.Second, "a send took %v", slowest)
	waitUntil("all that was acknowledged is handled", func() bool {
		lock.Lock()
		defer lock.Unlock()
		for id := range acknowledged {
			if !handled[id] {
				return false
			}
		}
		return true
	})
	stopPush(push, producer, name)
	stop(producer)
	return fmt.Sprintf("%d sends, %d failed, slowest %v", len(acknowledged), failures, slowest)
}

// deadMaster has clients start while a broker group of the topic is dead.
func deadMaster(name string) string {
	producer := newProducer(name)
	consumer := newSimpleConsumer(name, name, rmq.SUB_ALL)
	ids := sendMany(producer, name, 20, 4)
	for id := range receiveSome(consumer, 20) {
		expect(ids[id], "another message than those sent")
	}
	stop(producer)
	stop(consumer)
	return ""
}
