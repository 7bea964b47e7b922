package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// RocketMQ's remoting protocol, as far as its Java producer uses it for sends: a frame is the length of all that follows, the
// header's length (its first byte is 0, which means JSON), the header, the body; four bytes each for the numbers.
const (
	codeHeartbeat, codeRoute, codeSend, codeSendBatch = 34, 105, 310, 320
	codeSuccess                                       = 0
	remotingVersion                                   = 497 // what the client of RocketMQ 5.5.0 says it is
	batchMagic                                        = 0
	heartbeatOpaque                                   = -1
	permWrite                                         = 2
)

// escaped turns the separators of properties into JSON.
var escaped = strings.NewReplacer("\x01", `\u0001`, "\x02", `\u0002`)

// remotingHeader is what is read of an answer.
type remotingHeader struct {
	Code   int    `json:"code"`
	Opaque int    `json:"opaque"`
	Remark string `json:"remark"`
}

// remoting is a producer's connection to a NameServer or broker. It belongs to one goroutine, like connection.
type remoting struct {
	socket net.Conn
	reader *bufio.Reader
	out    []byte
}

func dialRemoting(address string) (*remoting, error) {
	socket, err := net.DialTimeout("tcp", address, dialLimit)
	if err != nil {
		return nil, err
	}
	return &remoting{socket: socket, reader: bufio.NewReaderSize(socket, usualReadBytes)}, nil
}

// request appends a frame to what is to be written. extra is the content of a JSON object.
func (r *remoting) request(code, opaque int, extra, body []byte) {
	start := len(r.out)
	r.out = append(r.out, 0, 0, 0, 0, 0, 0, 0, 0)
	r.out = append(r.out, `{"code":`...)
	r.out = strconv.AppendInt(r.out, int64(code), 10)
	r.out = append(r.out, `,"extFields":{`...)
	r.out = append(r.out, extra...)
	r.out = append(r.out, `},"flag":0,"language":"JAVA","opaque":`...)
	r.out = strconv.AppendInt(r.out, int64(opaque), 10)
	r.out = append(r.out, `,"serializeTypeCurrentRPC":"JSON","version":`...)
	r.out = strconv.AppendInt(r.out, remotingVersion, 10)
	r.out = append(r.out, '}')
	binary.BigEndian.PutUint32(r.out[start+4:], uint32(len(r.out)-start-8))
	r.out = append(r.out, body...)
	binary.BigEndian.PutUint32(r.out[start:], uint32(len(r.out)-start-4))
}

// answer writes what is to be said, if nothing is left to read, and gives the next answer. The body is only lent.
// os.ErrDeadlineExceeded when there is none by the deadline of the socket.
func (r *remoting) answer() (header remotingHeader, body []byte, err error) {
	if r.reader.Buffered() == 0 && len(r.out) > 0 {
		if _, err := r.socket.Write(r.out); err != nil {
			return header, nil, err
		}
		r.out = r.out[:0]
	}
	head, err := r.reader.Peek(4)
	if err != nil {
		return header, nil, err
	}
	size := 4 + int(binary.BigEndian.Uint32(head))
	frame, err := r.reader.Peek(size) // an answer with a larger body than the reader holds is none to a producer
	if err != nil {
		return header, nil, err
	}
	_, _ = r.reader.Discard(size)
	headerSize := int(binary.BigEndian.Uint32(frame[4:]) & 0xffffff)
	return header, frame[8+headerSize:], json.Unmarshal(frame[8:8+headerSize], &header)
}

// remotingRoute is what is read of a topic's route.
type remotingRoute struct {
	Brokers []struct {
		Name      string            `json:"brokerName"`
		Addresses map[string]string `json:"brokerAddrs"`
	} `json:"brokerDatas"`
	Queues []struct {
		Broker string `json:"brokerName"`
		Perm   int    `json:"perm"`
		Write  int    `json:"writeQueueNums"`
	} `json:"queueDatas"`
}

// findRoute asks a NameServer for a topic of one broker group: the master's name and address, and its queues to write to.
func findRoute(o *options) (name, address string, queues int, err error) {
	r, err := dialRemoting(o.endpoint)
	if err != nil {
		return "", "", 0, err
	}
	defer r.socket.Close()
	_ = r.socket.SetDeadline(time.Now().Add(o.timeout))
	r.request(codeRoute, 1, fmt.Appendf(nil, `"topic":%q,"acceptStandardJsonOnly":"true"`, o.topic), nil)
	header, body, err := r.answer()
	if err != nil {
		return "", "", 0, err
	}
	route := remotingRoute{}
	if header.Code == codeSuccess {
		err = json.Unmarshal(body, &route)
	}
	if err != nil || len(route.Brokers) != 1 || len(route.Queues) != 1 || route.Queues[0].Perm&permWrite == 0 {
		return "", "", 0, fmt.Errorf("route of %s: code %d %s %s %v", o.topic, header.Code, header.Remark, body, err)
	}
	broker := route.Brokers[0]
	return broker.Name, broker.Addresses["0"], route.Queues[0].Write, nil
}

// remotingSender keeps o.inflight requests in the air over one connection.
type remotingSender struct {
	*remoting
	o       *options
	meter   *Meter
	ids     *messageIDs
	fixed   string // header fields that are the same in all requests
	queues  int
	turn    int
	body    []byte
	content []byte
	extra   []byte
	started []time.Time // of each slot, by opaque; zero: at rest
}

// sendRemoting is `send` by RocketMQ's own protocol, as its Java producer would: the endpoint is a NameServer's.
func sendRemoting(ctx context.Context, o *options) error {
	name, address, queues, err := findRoute(o)
	if err != nil {
		return err
	}
	r, err := dialRemoting(address)
	if err != nil {
		return err
	}
	defer r.socket.Close()
	s := &remotingSender{
		remoting: r, o: o, meter: newMeter(o.plan), ids: newMessageIDs(), queues: queues,
		fixed: fmt.Sprintf(`"a":"rawload-%d","b":%q,"c":"TBW102","d":"4","f":"0","h":"0","j":"0","k":"false","m":"%t","n":%q`,
			os.Getpid(), o.topic, o.batch > 1, name),
		body:    bytes.Repeat([]byte("abcdefghijklmnop"), o.size/16+1)[:o.size],
		started: make([]time.Time, o.inflight),
	}
	work, end := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.run(work); err != nil {
			end(fmt.Errorf("%s: %w", address, err))
		}
	}()
	s.meter.run(work)
	end(nil)
	<-done
	s.meter.finish()
	return failure(work)
}

func (s *remotingSender) run(work context.Context) error {
	for slot := range s.started {
		s.next(slot)
	}
	underWay := len(s.started)
	nextLook, nextHeartbeat := time.Time{}, time.Time{}
	for underWay > 0 {
		if now := time.Now(); now.After(nextLook) {
			nextLook = now.Add(lookEvery)
			_ = s.socket.SetReadDeadline(nextLook)
			_ = s.socket.SetWriteDeadline(now.Add(writeLimit))
			for _, started := range s.started {
				if !started.IsZero() && now.Sub(started) > s.o.timeout {
					return fmt.Errorf("no answer within %v", s.o.timeout)
				}
			}
			if now.After(nextHeartbeat) {
				nextHeartbeat = now.Add(heartbeatEvery)
				s.heartbeat()
			}
		}
		header, _, err := s.answer()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if err != nil {
			return err
		}
		if header.Opaque == heartbeatOpaque {
			continue
		}
		slot := header.Opaque
		// FLUSH_SLAVE_TIMEOUT and its like are codes of their own: stored, but not as safely as was asked for.
		if header.Code == codeSuccess {
			s.meter.done(s.o.batch, time.Since(s.started[slot]))
		} else {
			s.meter.failed(fmt.Sprintf("code %d: %s", header.Code, header.Remark))
		}
		if work.Err() != nil {
			s.started[slot] = time.Time{}
			underWay--
		} else {
			s.next(slot)
		}
	}
	return nil
}

func (s *remotingSender) heartbeat() {
	body := fmt.Appendf(nil, `{"clientID":"rawload@%d","consumerDataSet":[],"producerDataSet":[{"groupName":"rawload-%d"}]}`, os.Getpid(), os.Getpid())
	s.request(codeHeartbeat, heartbeatOpaque, nil, body)
}

// next makes the slot's next request. All messages of a request go to one queue.
func (s *remotingSender) next(slot int) {
	now := time.Now()
	s.started[slot] = now
	s.turn++
	s.extra = append(append(s.extra[:0], s.fixed...), `,"e":"`...)
	s.extra = strconv.AppendInt(s.extra, int64(s.turn%s.queues), 10)
	s.extra = append(s.extra, `","g":"`...)
	s.extra = strconv.AppendInt(s.extra, now.UnixMilli(), 10)
	s.extra = append(s.extra, `","i":"`...)
	code, content := codeSend, s.body
	if s.o.batch == 1 {
		s.extra = append(s.extra, escaped.Replace(s.properties(s.turn))...)
	} else {
		code = codeSendBatch
		s.content = s.content[:0]
		for i := range s.o.batch {
			s.appendToBatch(s.properties(s.turn*s.o.batch + i))
		}
		content = s.content
	}
	s.extra = append(s.extra, '"')
	s.request(code, slot, s.extra, content)
}

func (s *remotingSender) properties(number int) string {
	return "KEYS\x01k" + strconv.Itoa(number) + "\x02UNIQ_KEY\x01" + s.ids.next()[2:] + "\x02WAIT\x01true\x02TAGS\x01" + s.o.tag + "\x02"
}

// appendToBatch adds a message to a batch's body: size, magic, CRC, flag, body and properties, each of the two behind its length.
func (s *remotingSender) appendToBatch(properties string) {
	s.content = binary.BigEndian.AppendUint32(s.content, uint32(4*5+len(s.body)+2+len(properties)))
	s.content = binary.BigEndian.AppendUint32(s.content, batchMagic)
	s.content = binary.BigEndian.AppendUint32(s.content, crc32.ChecksumIEEE(s.body))
	s.content = binary.BigEndian.AppendUint32(s.content, 0)
	s.content = binary.BigEndian.AppendUint32(s.content, uint32(len(s.body)))
	s.content = append(s.content, s.body...)
	s.content = binary.BigEndian.AppendUint16(s.content, uint16(len(properties)))
	s.content = append(s.content, properties...)
}
