package main

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/sha1"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"
)

const (
	servicePath = "/apache.rocketmq.v2.MessagingService/"
	// What the server may send ahead, on one stream and on all.
	streamWindow, allWindow = 4 << 20, 16 << 20
	prefaceWindow           = 65535 // either side's until somebody says otherwise
	usualReadBytes          = 128 << 10
	dialLimit, writeLimit   = 10 * time.Second, 10 * time.Second
	lookEvery               = 200 * time.Millisecond // at the clock: for calls whose time is up
	frameHead, messageHead  = 9, 5                   // bytes before a frame's and a gRPC message's content
)

// errClosed ends what is under way when its connection is closed in order.
var errClosed = errors.New("the connection was closed")

// answers is who hears what becomes of a call. The connection calls on its own goroutine.
type answers interface {
	// message is one answer; it is only lent.
	message(answer []byte)
	// ended says that nothing follows; nil for the status OK.
	ended(err error)
}

// call is one request and the stream it is on.
type call struct {
	answers
	method     string
	limit      time.Duration // none: 0
	isOpen     bool          // the request is a stream that goes on
	opened     func()        // the server's limit of concurrent streams has let it pass; may be nil
	id         uint32
	deadline   time.Time
	window     int64
	rest       []byte // of the request, as long as no window lets it pass
	partial    []byte // of an answer
	unreturned int    // bytes read that the server does not know of
}

// connection is a gRPC client's HTTP/2 connection. It belongs to one goroutine, which reads, calls back, and writes what
// the callbacks started when all that was read is used up. So no message is handed from goroutine to goroutine, which costs
// a generator more than the message. What a server sees is what gRPC's library for Go would send: its header fields and
// their compression, its deadlines, its PING with an answer.
type connection struct {
	endpoint, clientID string
	socket             net.Conn
	reader             *bufio.Reader
	framer             *http2.Framer // reads from reader, writes into out
	out, block         bytes.Buffer
	encoder            *hpack.Encoder
	payload            []byte
	date, signed       string
	dateSecond         int64

	calls     map[uint32]*call
	nextID    uint32
	waiting   []*call // for the server's limit of concurrent streams
	stuck     []*call // for a window
	isReady   bool    // the server's settings have come
	isPinging bool
	nextLook  time.Time
	tick      func(now time.Time) // at each look at the clock; may be nil

	streamsMax, frameMax, callWindow, window int64 // what the server takes
	unreturned                               int
}

// dialing is how all connections of this process are made.
var dialing struct {
	tls                  bool
	source               string
	accessKey, secretKey string // who signs in; nobody: ""
}

func openSocket(endpoint string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: dialLimit}
	if dialing.source != "" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(dialing.source)}
	}
	if !dialing.tls {
		return dialer.Dial("tcp", endpoint)
	}
	// The server is measured, not trusted.
	return tls.DialWithDialer(&dialer, "tcp", endpoint, &tls.Config{NextProtos: []string{"h2"}, InsecureSkipVerify: true})
}

// connect returns when the settings of both sides were exchanged.
func connect(endpoint, clientID string, readBytes int) (*connection, error) {
	socket, err := openSocket(endpoint)
	if err != nil {
		return nil, err
	}
	c := &connection{
		endpoint: endpoint, clientID: clientID, socket: socket, reader: bufio.NewReaderSize(socket, readBytes),
		calls: map[uint32]*call{}, nextID: 1,
		streamsMax: 1 << 31, frameMax: 16 << 10, callWindow: prefaceWindow, window: prefaceWindow,
	}
	c.framer = http2.NewFramer(&c.out, c.reader)
	c.framer.SetReuseFrames()
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.encoder = hpack.NewEncoder(&c.block)
	c.out.WriteString(http2.ClientPreface)
	written(c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow}))
	written(c.framer.WriteWindowUpdate(0, allWindow-prefaceWindow))
	for limit := time.Now().Add(dialLimit); !c.isReady && err == nil; {
		if err = c.step(); err == nil && time.Now().After(limit) {
			err = fmt.Errorf("no SETTINGS within %v", dialLimit)
		}
	}
	if err != nil {
		socket.Close()
		return nil, fmt.Errorf("%s: %w", endpoint, err)
	}
	return c, nil
}

// written is for frames that go to memory: what can fail is this program's own doing.
func written(err error) {
	if err != nil {
		panic(err)
	}
}

// start makes a call; the request is used up when it returns.
func (c *connection) start(one *call, request proto.Message) {
	payload, err := proto.MarshalOptions{}.MarshalAppend(append(c.payload[:0], 0, 0, 0, 0, 0), request)
	written(err)
	binary.BigEndian.PutUint32(payload[1:], uint32(len(payload)-messageHead))
	c.payload = payload
	if one.limit > 0 {
		one.deadline = time.Now().Add(one.limit)
	}
	if int64(len(c.calls)) >= c.streamsMax {
		one.rest = bytes.Clone(payload)
		c.waiting = append(c.waiting, one)
		return
	}
	c.open(one, payload)
}

func (c *connection) open(one *call, payload []byte) {
	one.id, one.window = c.nextID, c.callWindow
	c.nextID += 2
	c.calls[one.id] = one
	written(c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: one.id, BlockFragment: c.headers(one), EndHeaders: true}))
	if one.opened != nil {
		one.opened()
	}
	if c.send(one, payload) > 0 {
		c.stuck = append(c.stuck, one)
	}
}

// send writes as much of a request as the windows take, and keeps the rest; it returns how much that is.
func (c *connection) send(one *call, payload []byte) int {
	for len(payload) > 0 {
		count := min(int64(len(payload)), c.frameMax, c.window, one.window)
		if count <= 0 {
			break
		}
		written(c.framer.WriteData(one.id, !one.isOpen && count == int64(len(payload)), payload[:count]))
		payload = payload[count:]
		c.window -= count
		one.window -= count
	}
	one.rest = bytes.Clone(payload)
	return len(payload)
}

func (c *connection) headers(one *call) []byte {
	c.block.Reset()
	field := func(name, value string) { written(c.encoder.WriteField(hpack.HeaderField{Name: name, Value: value})) }
	field(":method", "POST")
	field(":scheme", "http")
	field(":path", one.method)
	field(":authority", c.endpoint)
	field("content-type", "application/grpc")
	field("user-agent", "grpc-go/1.85.0")
	field("te", "trailers")
	if one.limit > 0 {
		field("grpc-timeout", strconv.FormatInt(time.Until(one.deadline).Microseconds(), 10)+"u")
	}
	field("x-mq-language", "GO")
	field("x-mq-protocol", "v2")
	field("x-mq-client-version", clientVersion)
	field("x-mq-client-id", c.clientID)
	field("x-mq-request-id", requestID())
	now := time.Now()
	if now.Unix() != c.dateSecond {
		c.date, c.dateSecond = now.UTC().Format("20060102T150405Z"), now.Unix()
		c.signed = signature(c.date)
	}
	field("x-mq-date-time", c.date)
	if c.signed != "" {
		field("authorization", c.signed)
	}
	return c.block.Bytes()
}

// signature is what the official Go client puts into each call, once a second: all calls of one have the same.
func signature(date string) string {
	if dialing.accessKey == "" {
		return ""
	}
	mac := hmac.New(sha1.New, []byte(dialing.secretKey))
	mac.Write([]byte(date))
	return "MQv2-HMAC-SHA1 Credential=" + dialing.accessKey + "//Rocketmq, SignedHeaders=x-mq-date-time, Signature=" +
		hex.EncodeToString(mac.Sum(nil))
}

// runUntil serves the connection until `over` says so, which it is asked after each frame and look at the clock.
func (c *connection) runUntil(over func() bool) error {
	for !over() {
		if err := c.step(); err != nil {
			return fmt.Errorf("%s: %w", c.endpoint, err)
		}
	}
	return nil
}

// step handles one frame. When there is none it writes what is to be said and waits for one, until the next look at the clock.
func (c *connection) step() error {
	if !c.hasFrame() {
		if now := time.Now(); now.After(c.nextLook) {
			c.look(now)
		}
		if c.out.Len() > 0 {
			if _, err := c.out.WriteTo(c.socket); err != nil {
				return err
			}
		}
		// Only looked at: a frame that is cut by the deadline is still there afterwards.
		head, err := c.reader.Peek(frameHead)
		if err == nil {
			_, err = c.reader.Peek(frameHead + lengthOf(head))
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	frame, err := c.framer.ReadFrame()
	if err != nil {
		return err
	}
	return c.handle(frame)
}

func lengthOf(head []byte) int { return int(head[0])<<16 | int(head[1])<<8 | int(head[2]) }

func (c *connection) hasFrame() bool {
	buffered := c.reader.Buffered()
	if buffered < frameHead {
		return false
	}
	head, _ := c.reader.Peek(frameHead)
	return buffered >= frameHead+lengthOf(head)
}

func (c *connection) look(now time.Time) {
	c.nextLook = now.Add(lookEvery)
	_ = c.socket.SetReadDeadline(c.nextLook)
	_ = c.socket.SetWriteDeadline(now.Add(writeLimit))
	var late []*call
	for _, one := range c.calls {
		if one.limit > 0 && now.After(one.deadline) {
			late = append(late, one)
		}
	}
	for _, one := range late {
		written(c.framer.WriteRSTStream(one.id, http2.ErrCodeCancel))
		c.end(one, fmt.Errorf("no answer within %v", one.limit))
	}
	if c.tick != nil {
		c.tick(now)
	}
}

func (c *connection) handle(frame http2.Frame) error {
	one := c.calls[frame.Header().StreamID]
	switch f := frame.(type) {
	case *http2.DataFrame:
		c.read(one, f)
	case *http2.MetaHeadersFrame:
		if one != nil && f.StreamEnded() {
			c.end(one, outcome(f.Fields))
		}
	case *http2.WindowUpdateFrame:
		if one != nil {
			one.window += int64(f.Increment)
		} else if f.StreamID == 0 {
			c.window += int64(f.Increment)
		}
		c.resume()
	case *http2.PingFrame:
		if f.IsAck() {
			c.isPinging = false
		} else {
			written(c.framer.WritePing(true, f.Data))
		}
	case *http2.SettingsFrame:
		if !f.IsAck() {
			return c.settings(f)
		}
	case *http2.RSTStreamFrame:
		if one != nil {
			c.end(one, fmt.Errorf("RST_STREAM %v", f.ErrCode))
		}
	case *http2.GoAwayFrame:
		return fmt.Errorf("GOAWAY %v %q", f.ErrCode, f.DebugData())
	}
	return nil
}

func (c *connection) read(one *call, frame *http2.DataFrame) {
	if c.unreturned += int(frame.Length); c.unreturned > allWindow/4 {
		written(c.framer.WriteWindowUpdate(0, uint32(c.unreturned)))
		c.unreturned = 0
	}
	if !c.isPinging { // how gRPC's libraries find out the bandwidth
		c.isPinging = true
		written(c.framer.WritePing(false, [8]byte{2, 4, 16, 16, 9, 14, 7, 7}))
	}
	if one == nil { // given up
		return
	}
	if one.unreturned += int(frame.Length); one.unreturned > streamWindow/4 {
		written(c.framer.WriteWindowUpdate(one.id, uint32(one.unreturned)))
		one.unreturned = 0
	}
	data := frame.Data()
	if len(one.partial) > 0 {
		one.partial = append(one.partial, data...)
		data = one.partial
	}
	for len(data) >= messageHead {
		size := messageHead + int(binary.BigEndian.Uint32(data[1:]))
		if len(data) < size {
			break
		}
		one.message(data[messageHead:size])
		data = data[size:]
	}
	one.partial = append(one.partial[:0], data...)
	if frame.StreamEnded() {
		c.end(one, errors.New("an answer without a status"))
	}
}

// outcome is what the last header block of a call says.
func outcome(fields []hpack.HeaderField) error {
	status, reason := "", ""
	for _, field := range fields {
		switch field.Name {
		case "grpc-status":
			status = field.Value
		case "grpc-message":
			reason = field.Value
			if plain, err := url.PathUnescape(reason); err == nil {
				reason = plain
			}
		}
	}
	if status == "0" {
		return nil
	}
	return fmt.Errorf("grpc-status %s: %s", status, reason)
}

func (c *connection) end(one *call, err error) {
	delete(c.calls, one.id)
	if one.isOpen || len(one.rest) > 0 {
		written(c.framer.WriteRSTStream(one.id, http2.ErrCodeCancel))
		c.stuck = slices.DeleteFunc(c.stuck, func(other *call) bool { return other == one })
	}
	if len(c.waiting) > 0 {
		next := c.waiting[0]
		c.waiting = c.waiting[1:]
		c.open(next, next.rest)
	}
	one.ended(err)
}

func (c *connection) settings(f *http2.SettingsFrame) error {
	err := f.ForeachSetting(func(setting http2.Setting) error {
		switch value := int64(setting.Val); setting.ID {
		case http2.SettingMaxConcurrentStreams:
			c.streamsMax = value
		case http2.SettingMaxFrameSize:
			c.frameMax = value
		case http2.SettingHeaderTableSize:
			c.encoder.SetMaxDynamicTableSizeLimit(setting.Val)
		case http2.SettingInitialWindowSize:
			for _, one := range c.calls {
				one.window += value - c.callWindow
			}
			c.callWindow = value
		}
		return setting.Valid()
	})
	c.isReady = true
	written(c.framer.WriteSettingsAck())
	c.resume()
	return err
}

func (c *connection) resume() {
	stuck := c.stuck
	c.stuck = nil
	for _, one := range stuck {
		if c.send(one, one.rest) > 0 {
			c.stuck = append(c.stuck, one)
		}
	}
}

// single waits for the one answer of a call.
type single struct {
	answer   proto.Message
	answered bool
	over     bool
	err      error
}

func (s *single) message(answer []byte) {
	s.answered = true
	s.err = proto.Unmarshal(answer, s.answer)
}

func (s *single) ended(err error) {
	s.over = true
	if s.err == nil {
		s.err = err
	}
}

// ask makes a call and serves the connection until it is answered.
func (c *connection) ask(method string, request, answer proto.Message, limit time.Duration) error {
	s := &single{answer: answer}
	c.start(&call{answers: s, method: method, limit: limit}, request)
	if err := c.runUntil(func() bool { return s.over }); err != nil {
		return err
	}
	return s.err
}

// close ends the connection and every call on it.
func (c *connection) close() {
	c.socket.Close()
	for _, one := range c.calls {
		one.ended(errClosed)
	}
	for _, one := range c.waiting {
		one.ended(errClosed)
	}
	clear(c.calls)
	c.waiting = nil
}
