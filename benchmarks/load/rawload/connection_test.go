package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// server answers calls by the HTTP/2 library's server, which keeps to windows and limits of its own.
func server(t *testing.T, settings http2.Server, handler http.HandlerFunc) *connection {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			socket, err := listener.Accept()
			if err != nil {
				return
			}
			go settings.ServeConn(socket, &http2.ServeConnOpts{Handler: handler})
		}
	}()
	c, err := connect(listener.Addr().String(), "client", usualReadBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	return c
}

// echo answers with the request's message, cut into writes of odd sizes.
func echo(w http.ResponseWriter, request *http.Request) {
	body, _ := io.ReadAll(request.Body)
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Trailer", "Grpc-Status")
	for len(body) > 0 {
		count := min(len(body), 777)
		w.Write(body[:count])
		body = body[count:]
	}
	w.Header().Set("Grpc-Status", "0")
}

func TestMessagesLargerThanEveryWindowComeBackWhole(t *testing.T) {
	c := server(t, http2.Server{MaxUploadBufferPerStream: 70_000, MaxUploadBufferPerConnection: 70_000}, echo)
	for _, size := range []int{0, 1, 16 << 10, 3 << 20, 9 << 20} {
		sent := wrapperspb.Bytes(bytes.Repeat([]byte{7}, size))
		answer := &wrapperspb.BytesValue{}
		if err := c.ask("/test/Echo", sent, answer, time.Minute); err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		if !bytes.Equal(answer.Value, sent.Value) {
			t.Errorf("%d bytes came back as %d", size, len(answer.Value))
		}
	}
}

func TestCallsBeyondTheLimitOfStreamsWaitForTheirTurn(t *testing.T) {
	const limit, calls = 3, 20
	running, most := make(chan struct{}, calls), 0
	c := server(t, http2.Server{MaxConcurrentStreams: limit}, func(w http.ResponseWriter, request *http.Request) {
		running <- struct{}{}
		time.Sleep(time.Millisecond)
		<-running
		echo(w, request)
	})
	var all []*single
	for range calls {
		s := &single{answer: &wrapperspb.BytesValue{}}
		all = append(all, s)
		c.start(&call{answers: s, method: "/test/Echo", limit: time.Minute}, wrapperspb.Bytes([]byte("x")))
		most = max(most, len(c.calls))
	}
	err := c.runUntil(func() bool {
		for _, s := range all {
			if !s.over {
				return false
			}
		}
		return true
	})
	if err != nil || most > limit {
		t.Fatalf("%v, %d calls at once", err, most)
	}
	for _, s := range all {
		if s.err != nil || string(s.answer.(*wrapperspb.BytesValue).Value) != "x" {
			t.Errorf("%v, %v", s.err, s.answer)
		}
	}
}

func TestWhatIsNotAnsweredInTimeIsGivenUp(t *testing.T) {
	left := make(chan struct{})
	c := server(t, http2.Server{}, func(w http.ResponseWriter, request *http.Request) {
		if request.URL.Path == "/test/Echo" {
			echo(w, request)
			return
		}
		<-request.Context().Done()
		close(left)
	})
	err := c.ask("/test/Never", wrapperspb.Bytes(nil), &wrapperspb.BytesValue{}, 10*time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "no answer") {
		t.Fatal(err)
	}
	if err := c.ask("/test/Echo", wrapperspb.Bytes(nil), &wrapperspb.BytesValue{}, time.Minute); err != nil {
		t.Fatal(err)
	}
	<-left // the server heard of it
}

func TestAStatusOtherThanOKIsAnError(t *testing.T) {
	c := server(t, http2.Server{}, func(w http.ResponseWriter, request *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Grpc-Status", "8")
		w.Header().Set("Grpc-Message", "too much")
	})
	err := c.ask("/test/Any", wrapperspb.Bytes(nil), &wrapperspb.BytesValue{}, time.Minute)
	if err == nil || !strings.Contains(err.Error(), "8: too much") {
		t.Fatal(err)
	}
}

func TestCallsEndWithTheirConnection(t *testing.T) {
	c := server(t, http2.Server{}, func(w http.ResponseWriter, request *http.Request) { <-request.Context().Done() })
	s := &single{answer: &wrapperspb.BytesValue{}}
	c.start(&call{answers: s, method: "/test/Never"}, wrapperspb.Bytes(nil))
	c.close()
	if !s.over || !errors.Is(s.err, errClosed) {
		t.Fatal(s.over, s.err)
	}
}

func TestBatchesAreEncodedAsTheBrokerReadsThem(t *testing.T) {
	s := &remotingSender{body: []byte("body")}
	s.appendToBatch("KEYS\x01k\x02")
	if size := binary.BigEndian.Uint32(s.content); int(size) != len(s.content) || !bytes.HasSuffix(s.content, []byte("\x00\x07KEYS\x01k\x02")) {
		t.Errorf("%d: %q", size, s.content)
	}
}
