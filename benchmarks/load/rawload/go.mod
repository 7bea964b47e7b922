module tandemmq.local/rawload

go 1.26.0

require (
	golang.org/x/net v0.60.0
	google.golang.org/protobuf v1.36.12
	tandemmq.local/rocketmqv2 v0.0.0
)

require golang.org/x/text v0.42.0 // indirect

// Made by benchmarks/load/build.py from proto/.
replace tandemmq.local/rocketmqv2 => ../../../build/load/stubs
