// Delayed messages for as long as somebody else disturbs the cluster.
//
//   node scenarios.js --endpoint … send TOPIC RECORD STOP LANES
//   node scenarios.js --endpoint … receive TOPIC GROUP RECORD STOP
//
// Each of the LANES sends one message after the other and repeats it until it is acknowledged, with a new due time. Both
// go on until the file STOP is there. Lines are separated by tabs. Sent: lane, number, message id, when it is due and
// now, in seconds since the epoch. Received: lane, number, message id, offset in its queue, seconds of the
// acknowledgement's OK or 0, seconds of the delivery.
'use strict';

const fs = require('node:fs');
const { setTimeout: sleep } = require('node:timers/promises');
const { Producer, SimpleConsumer } = require('rocketmq-client-nodejs');

const DELAYS_MS = [1_500, 4_000, 9_000];
const LEASE_MS = 15_000;
const AWAIT_MS = 5_000;
const BATCH = 16;
const RECEIVERS = 4;
const SEND_PAUSE_MS = 100;
const RETRY_PAUSE_MS = 200;
const FAILURES_SHOWN = 30;

let failures = 0;

function seconds(ms = Date.now()) {
  return (ms / 1_000).toFixed(3);
}

async function note(what, problem) {
  if (++failures <= FAILURES_SHOWN) process.stderr.write(`${seconds()} ${what}: ${problem}\n`);
  await sleep(RETRY_PAUSE_MS);
}

// The official client gives up at once when it has no route, and does not resolve a list of addresses: one at a time.
async function retried(endpoints, make) {
  const addresses = endpoints.split(';');
  for (let attempt = 0; ; attempt++) {
    const client = make(addresses[attempt % addresses.length]);
    try {
      await client.startup();
      return client;
    } catch (problem) {
      await note('start', problem);
    }
  }
}

function recorder(path) {
  const file = fs.openSync(path, 'w');
  return (...values) => fs.writeSync(file, `${values.join('\t')}\n`);
}

async function send(endpoints, topic, path, stop, lanes) {
  const record = recorder(path);
  const producer = await retried(endpoints, address => new Producer({ endpoints: address, topics: [topic] }));
  const lane = async place => {
    for (let number = 0; !fs.existsSync(stop); number++) {
      for (let sent = false; !sent;) {
        const dueMs = Date.now() + DELAYS_MS[number % DELAYS_MS.length];
        const deliveryTimestamp = new Date(dueMs);
        try {
          const receipt = await producer.send({ topic, body: Buffer.from(`${place}-${number}`), deliveryTimestamp });
          record(place, number, receipt.messageId, seconds(dueMs), seconds());
          sent = true;
        } catch (problem) {
          await note('send', problem);
        }
      }
      await sleep(SEND_PAUSE_MS);
    }
  };
  await Promise.all(Array.from({ length: lanes }, (_, place) => lane(place)));
  await producer.shutdown();
}

async function receive(endpoints, topic, consumerGroup, path, stop) {
  const record = recorder(path);
  const subscriptions = new Map([[topic, '*']]);
  const more = { consumerGroup, subscriptions, awaitDuration: AWAIT_MS };
  const consumer = await retried(endpoints, address => new SimpleConsumer({ endpoints: address, ...more }));
  const receiver = async () => {
    while (!fs.existsSync(stop)) {
      let views = [];
      try {
        views = await consumer.receive(BATCH, LEASE_MS);
      } catch (problem) {
        await note('receive', problem);
      }
      const received = seconds();
      for (const view of views) {
        let acknowledged = 0;
        try {
          await consumer.ack(view);
          acknowledged = seconds();
        } catch (problem) {
          await note('ack', problem);
        }
        const [lane, number] = view.body.toString().split('-');
        record(lane, number, view.messageId, view.offset, acknowledged, received);
      }
    }
  };
  await Promise.all(Array.from({ length: RECEIVERS }, receiver));
  await consumer.shutdown();
}

// Runs what the arguments say; false: they name scenarios.
async function load(endpoints, [verb, ...rest]) {
  if (verb === 'send' && rest.length === 4) await send(endpoints, rest[0], rest[1], rest[2], Number(rest[3]));
  else if (verb === 'receive' && rest.length === 4) await receive(endpoints, ...rest);
  else return false;
  return true;
}

module.exports = { load };
