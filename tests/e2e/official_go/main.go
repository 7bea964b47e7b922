// Runs the client API's conformance scenarios with the official Go client, unchanged.
//
//	scenarios --endpoint 127.0.0.1:8081 [scenario ...]
//
// Scenarios named as arguments run at the same time. Without any, names are read from standard input, one a line, until
// it ends; a line "continue NAME" lets a scenario go on that said it waits. Each scenario prints one JSON line.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

// failure is a broken expectation; anything else that goes wrong is reported as it is.
type failure struct{ text string }

func expect(holds bool, format string, arguments ...any) {
	if !holds {
		panic(failure{fmt.Sprintf(format, arguments...)})
	}
}

func must(err error, what string) {
	if err != nil {
		panic(failure{fmt.Sprintf("%s: %v", what, err)})
	}
}

var (
	endpoint  string
	printing  sync.Mutex
	continued = map[string]chan struct{}{}
)

func report(line map[string]any) {
	printing.Lock()
	defer printing.Unlock()
	text, _ := json.Marshal(line)
	fmt.Println(string(text))
}

func run(name string, started time.Time) {
	defer func() {
		seconds := time.Since(started).Seconds()
		if problem := recover(); problem != nil {
			text := fmt.Sprint(problem)
			if broken, ok := problem.(failure); ok {
				text = broken.text
			}
			report(map[string]any{"scenario": name, "ok": false, "detail": text, "seconds": seconds})
		}
	}()
	scenario, known := scenarios[name]
	expect(known, "no such scenario")
	detail := scenario(name)
	report(map[string]any{"scenario": name, "ok": true, "detail": detail, "seconds": time.Since(started).Seconds()})
}

// waitForContinue tells the starter that the scenario waits, and returns when it may go on.
func waitForContinue(name string) {
	report(map[string]any{"scenario": name, "waits": true})
	<-continued[name]
}

func main() {
	flag.StringVar(&endpoint, "endpoint", "127.0.0.1:8081", "access point")
	flag.Parse()
	rmq.EnableSsl = false
	if load(flag.Args()) {
		return
	}
	for name := range scenarios {
		continued[name] = make(chan struct{}, 1)
	}
	var all sync.WaitGroup
	start := func(name string) {
		all.Add(1)
		go func() {
			defer all.Done()
			run(name, time.Now())
		}()
	}
	for _, name := range flag.Args() {
		start(name)
	}
	if flag.NArg() == 0 {
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			line := strings.TrimSpace(lines.Text())
			if name, is := strings.CutPrefix(line, "continue "); is {
				continued[name] <- struct{}{}
			} else if line != "" {
				start(line)
			}
		}
	}
	all.Wait()
}

// codeOf gives the client API's code of an error, 0 for any other error.
func codeOf(err error) int32 {
	var status *rmq.ErrRpcStatus
	if errors.As(err, &status) {
		return status.GetCode()
	}
	return 0
}
