package main

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "tandemmq.local/rocketmqv2"
)

const (
	clientVersion  = "5.1.3" // of the official Go client whose headers these are
	heartbeatEvery = 10 * time.Second
	farewellLimit  = time.Second
)

// client is one connection with the client id, Telemetry stream and heartbeats that an official client has on it.
type client struct {
	*connection
	timeout       time.Duration
	heartbeat     *pb.HeartbeatRequest
	nextHeartbeat time.Time
}

func dial(o *options, number, readBytes int) (*client, error) {
	name, _ := os.Hostname()
	id := fmt.Sprintf("%s@%d@%d@%s", name, os.Getpid(), number, strconv.FormatInt(time.Now().UnixNano(), 36))
	connection, err := connect(o.endpoint, id, readBytes)
	if err != nil {
		return nil, err
	}
	return &client{connection: connection, timeout: o.timeout}, nil
}

// request makes a call with the client's time limit, or `longer`.
func (c *client) request(method string, request proto.Message, to answers, longer time.Duration) {
	c.start(&call{answers: to, method: method, limit: c.timeout + longer}, request)
}

// begin does what an official client does before its first message: settings over Telemetry, route, heartbeat. It returns
// the queues that a producer may write and a consumer may read.
func (c *client) begin(settings *pb.Settings, topic string) ([]*pb.MessageQueue, error) {
	host, portText, err := net.SplitHostPort(c.endpoint)
	if err != nil {
		return nil, err
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return nil, fmt.Errorf("port of %s: %w", c.endpoint, err)
	}
	endpoints := &pb.Endpoints{Scheme: pb.AddressScheme_IPv4, Addresses: []*pb.Address{{Host: host, Port: int32(port)}}}
	settings.AccessPoint = endpoints
	settings.RequestTimeout = durationpb.New(c.timeout)
	settings.UserAgent = &pb.UA{Language: pb.Language_GOLANG, Version: clientVersion, Platform: runtime.GOOS, Hostname: "localhost"}
	if err := c.telemetry(settings); err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	route := &pb.QueryRouteResponse{}
	if err := c.ask(queryRoute, &pb.QueryRouteRequest{Topic: &pb.Resource{Name: topic}, Endpoints: endpoints}, route, c.timeout); err != nil {
		return nil, fmt.Errorf("query route: %w", err)
	}
	if route.GetStatus().GetCode() != pb.Code_OK || len(route.GetMessageQueues()) == 0 {
		return nil, fmt.Errorf("query route of %s: %v, %d queues", topic, route.GetStatus(), len(route.GetMessageQueues()))
	}
	c.heartbeat = &pb.HeartbeatRequest{Group: settings.GetSubscription().GetGroup(), ClientType: settings.GetClientType()}
	beat := &pb.HeartbeatResponse{}
	if err := c.ask(heartbeat, c.heartbeat, beat, c.timeout); err != nil {
		return nil, fmt.Errorf("heartbeat: %w", err)
	}
	if beat.GetStatus().GetCode() != pb.Code_OK {
		return nil, fmt.Errorf("heartbeat: %v", beat.GetStatus())
	}
	c.nextHeartbeat = time.Now().Add(heartbeatEvery)
	c.tick = c.beat
	return route.GetMessageQueues(), nil
}

func (c *client) telemetry(settings *pb.Settings) error {
	s := &single{answer: &pb.TelemetryCommand{}}
	command := &pb.TelemetryCommand{Command: &pb.TelemetryCommand_Settings{Settings: settings}}
	c.start(&call{answers: s, method: telemetry, isOpen: true}, command)
	limit := time.Now().Add(c.timeout)
	if err := c.runUntil(func() bool { return s.answered || s.over || time.Now().After(limit) }); err != nil {
		return err
	}
	if !s.answered && s.err == nil {
		return fmt.Errorf("no settings within %v", c.timeout)
	}
	return s.err
}

func (c *client) beat(now time.Time) {
	if now.After(c.nextHeartbeat) {
		c.nextHeartbeat = now.Add(heartbeatEvery)
		// One that fails is repaired by the next.
		c.request(heartbeat, c.heartbeat, &single{answer: &pb.HeartbeatResponse{}}, 0)
	}
}

// end says goodbye, so that the server forgets this client at once.
func (c *client) end() {
	if c.heartbeat != nil {
		request := &pb.NotifyClientTerminationRequest{Group: c.heartbeat.Group}
		_ = c.ask(notifyClientTermination, request, &pb.NotifyClientTerminationResponse{}, farewellLimit)
	}
	c.close()
}

// The methods by their names in header blocks.
const (
	queryRoute              = servicePath + "QueryRoute"
	heartbeat               = servicePath + "Heartbeat"
	telemetry               = servicePath + "Telemetry"
	sendMessage             = servicePath + "SendMessage"
	receiveMessage          = servicePath + "ReceiveMessage"
	ackMessage              = servicePath + "AckMessage"
	endTransaction          = servicePath + "EndTransaction"
	notifyClientTermination = servicePath + "NotifyClientTermination"
)

// requestID is a random UUID; chance need not be strong here, and the strong kind costs a system call.
func requestID() string {
	var id [16]byte
	for i := 0; i < 16; i += 8 {
		for j, word := 0, rand.Uint64(); j < 8; j, word = j+1, word>>8 {
			id[i+j] = byte(word)
		}
	}
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	var text [36]byte
	hex.Encode(text[0:8], id[0:4])
	hex.Encode(text[9:13], id[4:6])
	hex.Encode(text[14:18], id[6:8])
	hex.Encode(text[19:23], id[8:10])
	hex.Encode(text[24:36], id[10:16])
	text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
	return string(text[:])
}

// messageIDs makes ids as official clients do: version 01, hardware address, process, seconds since 2021, sequence; 17
// bytes in hex. The address is random here, so that ids of two runs cannot meet.
type messageIDs struct {
	prefix   string
	sequence atomic.Uint32
}

func newMessageIDs() *messageIDs {
	epoch := time.Date(2021, 1, 1, 0, 0, 0, 0, time.UTC)
	return &messageIDs{prefix: fmt.Sprintf("01%012X%04X%08X", rand.Uint64()>>16, os.Getpid()&0xffff, uint32(time.Since(epoch).Seconds()))}
}

func (m *messageIDs) next() string {
	const digits = "0123456789ABCDEF"
	number := m.sequence.Add(1)
	var id [34]byte
	copy(id[:], m.prefix)
	for i := 33; i >= 26; i, number = i-1, number>>4 {
		id[i] = digits[number&15]
	}
	return string(id[:])
}
