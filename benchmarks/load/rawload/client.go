package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "tandemmq.local/rocketmqv2"
)

const (
	clientVersion   = "5.1.3" // of the official Go client whose headers these are
	heartbeatEvery  = 10 * time.Second
	maxMessageBytes = 64 << 20
)

// client is one HTTP/2 connection with the client id, Telemetry stream and heartbeats that an official client has on it.
type client struct {
	connection *grpc.ClientConn
	stub       pb.MessagingServiceClient
	endpoints  *pb.Endpoints
	headers    metadata.MD
	timeout    time.Duration
}

func dial(o *options, number int, more ...grpc.DialOption) (*client, error) {
	host, portText, err := net.SplitHostPort(o.endpoint)
	if err != nil {
		return nil, err
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return nil, fmt.Errorf("port of %s: %w", o.endpoint, err)
	}
	connection, err := grpc.NewClient("passthrough:///"+o.endpoint, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes)),
		grpc.WithDisableServiceConfig(),
	}, more...)...)
	if err != nil {
		return nil, err
	}
	name, _ := os.Hostname()
	return &client{
		connection: connection,
		stub:       pb.NewMessagingServiceClient(connection),
		endpoints: &pb.Endpoints{
			Scheme:    pb.AddressScheme_IPv4,
			Addresses: []*pb.Address{{Host: host, Port: int32(port)}},
		},
		headers: metadata.Pairs(
			"x-mq-language", "GO",
			"x-mq-protocol", "v2",
			"x-mq-client-version", clientVersion,
			"x-mq-client-id", fmt.Sprintf("%s@%d@%d@%s", name, os.Getpid(), number, strconv.FormatInt(time.Now().UnixNano(), 36)),
		),
		timeout: o.timeout,
	}, nil
}

// call prepares the context of one request: its deadline, and the headers of which two change with each.
func (c *client) call(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.withHeaders(ctx), timeout)
}

func (c *client) withHeaders(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(metadata.NewOutgoingContext(ctx, c.headers),
		"x-mq-request-id", requestID(), "x-mq-date-time", time.Now().UTC().Format("20060102T150405Z"))
}

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

// begin does what an official client does before its first message: settings over Telemetry, route, heartbeat. The stream
// and the heartbeats live until ctx ends. It returns the queues that a producer may write and a consumer may read.
func (c *client) begin(ctx context.Context, settings *pb.Settings, topic string) ([]*pb.MessageQueue, error) {
	settings.AccessPoint = c.endpoints
	settings.RequestTimeout = durationpb.New(c.timeout)
	settings.UserAgent = &pb.UA{Language: pb.Language_GOLANG, Version: clientVersion, Platform: runtime.GOOS, Hostname: "localhost"}
	if err := c.telemetry(ctx, settings); err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	call, done := c.call(ctx, c.timeout)
	defer done()
	route, err := c.stub.QueryRoute(call, &pb.QueryRouteRequest{Topic: &pb.Resource{Name: topic}, Endpoints: c.endpoints})
	if err != nil {
		return nil, fmt.Errorf("query route: %w", err)
	}
	if route.GetStatus().GetCode() != pb.Code_OK || len(route.GetMessageQueues()) == 0 {
		return nil, fmt.Errorf("query route of %s: %v, %d queues", topic, route.GetStatus(), len(route.GetMessageQueues()))
	}
	heartbeat := &pb.HeartbeatRequest{Group: settings.GetSubscription().GetGroup(), ClientType: settings.GetClientType()}
	if err := c.heartbeat(ctx, heartbeat); err != nil {
		return nil, fmt.Errorf("heartbeat: %w", err)
	}
	go func() {
		for wait(ctx, heartbeatEvery); ctx.Err() == nil; wait(ctx, heartbeatEvery) {
			_ = c.heartbeat(ctx, heartbeat) // the next one repairs it
		}
	}()
	return route.GetMessageQueues(), nil
}

func (c *client) telemetry(ctx context.Context, settings *pb.Settings) error {
	stream, err := c.stub.Telemetry(c.withHeaders(ctx))
	if err != nil {
		return err
	}
	if err := stream.Send(&pb.TelemetryCommand{Command: &pb.TelemetryCommand_Settings{Settings: settings}}); err != nil {
		return err
	}
	answer := make(chan error, 1)
	go func() {
		_, err := stream.Recv()
		answer <- err
		for err == nil { // what the server says later is read and dropped
			_, err = stream.Recv()
		}
	}()
	select {
	case err := <-answer:
		return err
	case <-time.After(c.timeout):
		return context.DeadlineExceeded
	}
}

func (c *client) heartbeat(ctx context.Context, request *pb.HeartbeatRequest) error {
	call, done := c.call(ctx, c.timeout)
	defer done()
	answer, err := c.stub.Heartbeat(call, request)
	if err == nil && answer.GetStatus().GetCode() != pb.Code_OK {
		return fmt.Errorf("%v", answer.GetStatus())
	}
	return err
}

// end says goodbye, so that the server forgets this client at once.
func (c *client) end(group *pb.Resource) {
	call, done := c.call(context.Background(), time.Second)
	defer done()
	_, _ = c.stub.NotifyClientTermination(call, &pb.NotifyClientTerminationRequest{Group: group})
	_ = c.connection.Close()
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
