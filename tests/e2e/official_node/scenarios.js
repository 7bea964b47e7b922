// Runs the client API's conformance scenarios with the official Node.js client, unchanged.
//
//   node scenarios.js --endpoint 127.0.0.1:8081 [scenario ...]
//
// Scenarios named as arguments run at the same time. Without any, names are read from standard input, one a line, until
// it ends; a line "continue NAME" lets a scenario go on that said it waits. Each scenario prints one JSON line.
// Arguments that begin with send or receive are those of load.js.
'use strict';

const assert = require('node:assert/strict');
const readline = require('node:readline');
const { setTimeout: sleep } = require('node:timers/promises');
const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');
const { load } = require('./load.js');

const AWAIT_MS = 5_000;
const LIMIT_MS = 60_000;
const LONG_LEASE_MS = 60_000;
const SHORT_LEASE_MS = 10_000;
// Of FilterType, which the client does not export.
const SQL = 2;

// Body of a message that only ends a poll; handlers take it and leave it out.
const WAKE = 'wake';

let endpoint = '127.0.0.1:8081';

// Clients.

function configuration() {
  return {
    endpoints: endpoint,
    // Longer than the client's 3 s: on a busy machine a send that is tried again is stored twice.
    requestTimeout: 10_000,
    sessionCredentials: { accessKey: 'access-key', accessSecret: 'secret-key' },
  };
}

async function started(client) {
  await client.startup();
  return client;
}

function newProducer(...topics) {
  return started(new Producer({ ...configuration(), topics }));
}

// As the API has them; the package does not export the enum.
const TransactionResolution = { UNKNOWN: 0, COMMIT: 1 };

function newTransactionProducer(topic, check) {
  return started(new Producer({ ...configuration(), topics: [topic], checker: { check: async view => check(view) } }));
}

function newSimpleConsumer(topic, consumerGroup, filter = '*') {
  const subscriptions = new Map([[topic, filter]]);
  return started(new SimpleConsumer({ ...configuration(), consumerGroup, subscriptions, awaitDuration: AWAIT_MS }));
}

function newPushConsumer(topic, consumerGroup, consume) {
  const subscriptions = new Map([[topic, FilterExpression.SUB_ALL]]);
  const messageListener = { consume: view => (view.body.toString() === WAKE ? ConsumeResult.SUCCESS : consume(view)) };
  return started(new PushConsumer({ ...configuration(), consumerGroup, subscriptions, messageListener }));
}

async function close(...clients) {
  for (const client of clients) await client.shutdown();
}

// Stops a push consumer, which waits for the end of its 20 s polls; a message ends them sooner.
async function closePush(push, producer, topic, messageGroups = [undefined]) {
  const closed = close(push);
  await sleep(500);
  for (const messageGroup of messageGroups) await send(producer, message(topic, WAKE, { messageGroup }));
  await closed;
}

// Messages.

function message(topic, body, more = {}) {
  return { topic, body: Buffer.from(body), ...more };
}

async function send(producer, one) {
  return (await producer.send(one)).messageId;
}

// Sends numbered messages, at most `inflight` at once, and gives their ids.
async function sendMany(producer, topic, count, inflight) {
  const ids = new Set();
  let next = 0;
  const sender = async () => {
    while (next < count) ids.add(await send(producer, message(topic, `body ${next++}`)));
  };
  await Promise.all(Array.from({ length: inflight }, sender));
  assert.equal(ids.size, count, 'ids');
  return ids;
}

async function receiveSome(consumer, count) {
  const found = new Map();
  const deadline = Date.now() + LIMIT_MS;
  while (found.size < count) {
    assert(Date.now() < deadline, `${found.size} of ${count} messages`);
    for (const view of await consumer.receive(32, LONG_LEASE_MS)) {
      await consumer.ack(view);
      assert(!found.has(view.messageId), `message ${view.messageId} twice`);
      found.set(view.messageId, view);
    }
  }
  return found;
}

async function receiveOne(consumer, leaseMs) {
  const deadline = Date.now() + LIMIT_MS;
  for (;;) {
    const [view] = await consumer.receive(1, leaseMs);
    if (view) return view;
    assert(Date.now() < deadline, `no message within ${LIMIT_MS} ms`);
  }
}

async function waitUntil(what, holds) {
  const deadline = Date.now() + LIMIT_MS;
  while (!holds()) {
    assert(Date.now() < deadline, `not within ${LIMIT_MS} ms: ${what}`);
    await sleep(20);
  }
}

async function problemOf(action) {
  try {
    await action();
  } catch (problem) {
    return problem;
  }
  return undefined;
}

function sorted(some) {
  return [...some].sort();
}

// Scenarios: names are those of tests/e2e/scenarios.py; each scenario's topic and group are called as the scenario.

const scenarios = {
  // A push consumer stopped within its first second still begins a poll afterwards, and one stopped later waits for the
  // end of its poll: a message ends it.
  async start_stop(name) {
    const producer = await newProducer(name);
    await close(await newSimpleConsumer(name, name));
    const push = await newPushConsumer(name, `${name}-push`, () => ConsumeResult.SUCCESS);
    await sleep(3_000);
    await closePush(push, producer, name);
    await close(producer);
  },

  async round_trip(name) {
    const producer = await newProducer(name);
    const sent = new Map();
    for (let number = 0; number < 100; number++) {
      const properties = new Map([['number', `${number}`], ['größe', 'weiß']]);
      const keys = [`key-${number}`, 'second-key'];
      sent.set(await send(producer, message(name, `body ${number} grün`, { tag: `tag-${number % 3}`, keys, properties })), number);
    }
    const consumer = await newSimpleConsumer(name, name);
    const found = await receiveSome(consumer, 100);
    assert.deepEqual(sorted(found.keys()), sorted(sent.keys()));
    for (const [id, number] of sent) {
      const view = found.get(id);
      assert.equal(view.body.toString(), `body ${number} grün`);
      assert.equal(view.tag, `tag-${number % 3}`);
      assert.deepEqual(sorted(view.keys), [`key-${number}`, 'second-key']);
      assert.deepEqual([...view.properties].sort(), [['größe', 'weiß'], ['number', `${number}`]]);
      assert.equal(view.deliveryAttempt, 1);
      assert.equal(view.topic, name);
      assert(view.bornHost, 'no born host');
      assert(Math.abs(Date.now() - view.bornTimestamp.getTime()) < 300_000, `born ${view.bornTimestamp}`);
      assert(!view.corrupted, 'corrupted');
    }
    await close(producer, consumer);
    return '100 messages';
  },

  async acknowledged_once(name) {
    const producer = await newProducer(name);
    await sendMany(producer, name, 10, 1);
    const consumer = await newSimpleConsumer(name, name);
    for (let count = 0; count < 10;) {
      for (const view of await consumer.receive(32, SHORT_LEASE_MS)) {
        await consumer.ack(view);
        count++;
      }
    }
    for (const deadline = Date.now() + SHORT_LEASE_MS + 1_000; Date.now() < deadline;) {
      assert.equal((await consumer.receive(32, SHORT_LEASE_MS)).length, 0, 'messages came again');
    }
    await close(producer, consumer);
  },

  async delayed(name) {
    const producer = await newProducer(name);
    const consumer = await newSimpleConsumer(name, name);
    const due = new Date(Date.now() + 5_000);
    const id = await send(producer, message(name, 'later', { deliveryTimestamp: due }));
    await send(producer, message(name, 'at once', { deliveryTimestamp: new Date(Date.now() - 300_000) }));
    const first = await receiveOne(consumer, LONG_LEASE_MS);
    assert.equal(first.body.toString(), 'at once');
    assert(Date.now() < due.getTime(), 'it came late');
    await consumer.ack(first);
    const view = await receiveOne(consumer, LONG_LEASE_MS);
    const lateMs = Date.now() - due.getTime();
    assert.equal(view.messageId, id);
    assert(lateMs >= 0 && lateMs < 2_000, `${lateMs} ms after its time`);
    assert.equal(view.deliveryTimestamp?.getTime(), due.getTime());
    await consumer.ack(view);
    await close(producer, consumer);
    return `${lateMs} ms after its time`;
  },

  async recalled(name) {
    const producer = await newProducer(name);
    const consumer = await newSimpleConsumer(name, name);
    const deliveryTimestamp = new Date(Date.now() + 5_000);
    const recalled = await producer.send(message(name, 'recalled', { deliveryTimestamp }));
    const kept = await producer.send(message(name, 'kept', { deliveryTimestamp }));
    await producer.recallMessage(name, recalled.recallHandle);
    const again = await problemOf(() => producer.recallMessage(name, recalled.recallHandle));
    assert(String(again).includes('40400'), `second recall: ${again}`);
    const view = await receiveOne(consumer, LONG_LEASE_MS);
    assert.equal(view.messageId, kept.messageId, 'the recalled message came');
    await consumer.ack(view);
    const late = await problemOf(() => producer.recallMessage(name, kept.recallHandle));
    assert(String(late).includes('40400'), `recall of a delivered message: ${late}`);
    assert.equal((await consumer.receive(32, LONG_LEASE_MS)).length, 0, 'more messages');
    await close(producer, consumer);
  },

  async lease_end_redelivers(name) {
    const producer = await newProducer(name);
    const id = await send(producer, message(name, 'once more'));
    const consumer = await newSimpleConsumer(name, name);
    const first = await receiveOne(consumer, SHORT_LEASE_MS);
    const received = Date.now();
    const second = await receiveOne(consumer, SHORT_LEASE_MS);
    const waitedMs = Date.now() - received;
    assert.deepEqual([first.messageId, second.messageId], [id, id]);
    assert.deepEqual([first.deliveryAttempt, second.deliveryAttempt], [1, 2]);
    assert.notEqual(first.receiptHandle, second.receiptHandle);
    assert(waitedMs > 9_000 && waitedMs < 15_000, `again after ${waitedMs} ms`);
    await consumer.ack(second);
    await close(producer, consumer);
    return `again after ${waitedMs} ms`;
  },

  async changed_lease(name) {
    const producer = await newProducer(name);
    await send(producer, message(name, 'changed'));
    const consumer = await newSimpleConsumer(name, name);
    const view = await receiveOne(consumer, SHORT_LEASE_MS);
    const before = view.receiptHandle;
    await consumer.changeInvisibleDuration(view, 30_000);
    const after = view.receiptHandle;
    assert.notEqual(before, after);
    view.receiptHandle = before;
    const problem = await problemOf(() => consumer.ack(view));
    assert.equal(problem?.code, 40013, `ack with the old handle: ${problem}`);
    view.receiptHandle = after;
    await consumer.ack(view);
    await close(producer, consumer);
  },

  async given_back_at_once(name) {
    const producer = await newProducer(name);
    await send(producer, message(name, 'given back'));
    const consumer = await newSimpleConsumer(name, name);
    for (let attempt = 1; attempt <= 3; attempt++) {
      const asked = Date.now();
      const view = await receiveOne(consumer, LONG_LEASE_MS);
      assert(attempt === 1 || Date.now() - asked < 3_000, `again after ${Date.now() - asked} ms`);
      assert.equal(view.deliveryAttempt, attempt);
      if (attempt < 3) await consumer.changeInvisibleDuration(view, 0);
      else await consumer.ack(view);
    }
    await close(producer, consumer);
  },

  async empty_receive(name) {
    const consumer = await newSimpleConsumer(name, name);
    const asked = Date.now();
    const views = await consumer.receive(32, LONG_LEASE_MS);
    const waitedMs = Date.now() - asked;
    assert.equal(views.length, 0);
    assert(waitedMs > 4_500 && waitedMs < 7_000, `an empty receive took ${waitedMs} ms`);
    await close(consumer);
    return `${waitedMs} ms`;
  },

  async receive_wakes(name) {
    const producer = await newProducer(name);
    const consumer = await newSimpleConsumer(name, name);
    const poll = consumer.receive(32, LONG_LEASE_MS);
    await sleep(1_500);
    const sent = Date.now();
    const id = await send(producer, message(name, 'wakes'));
    const views = await poll;
    const tookMs = Date.now() - sent;
    assert.deepEqual(views.map(view => view.messageId), [id]);
    assert(tookMs < 2_000, `delivered after ${tookMs} ms`);
    await consumer.ack(views[0]);
    await close(producer, consumer);
    return `${tookMs} ms`;
  },

  async tag_filter(name) {
    const producer = await newProducer(name);
    for (let number = 0; number < 30; number++) {
      const properties = new Map([['x', `${number}`]]);
      await send(producer, message(name, 'tagged', { tag: 'abc'[number % 3], properties }));
    }
    const consumer = await newSimpleConsumer(name, name, 'a || b');
    const tags = [...(await receiveSome(consumer, 20)).values()].map(view => view.tag).sort();
    assert.equal(tags.join(''), 'a'.repeat(10) + 'b'.repeat(10));
    assert.equal((await consumer.receive(32, LONG_LEASE_MS)).length, 0, 'messages beyond the filter');
    const sql = await newSimpleConsumer(name, `${name}-sql`, new FilterExpression('x > 3 AND x <= 12', SQL));
    const numbers = [...(await receiveSome(sql, 9)).values()].map(view => view.properties.get('x'));
    assert.deepEqual(sorted(numbers), sorted(['4', '5', '6', '7', '8', '9', '10', '11', '12']));
    assert.equal((await sql.receive(32, LONG_LEASE_MS)).length, 0, 'messages beyond the SQL92 filter');
    const asked = Date.now();
    const problem = await problemOf(() => newSimpleConsumer(name, `${name}-bad`, new FilterExpression('x > 3 AND', SQL)));
    assert.match(`${problem}`, /40010|SQL92 filter/);
    await close(producer, consumer, sql);
    return `the bad filter is told after ${Date.now() - asked} ms`;
  },

  async transaction_ends(name) {
    const producer = await newTransactionProducer(name, () => TransactionResolution.UNKNOWN);
    const committed = new Set();
    for (let number = 0; number < 10; number++) {
      const transaction = producer.beginTransaction();
      const { messageId } = await producer.send(message(name, `body ${number}`), transaction);
      if (number % 2 === 0) {
        await transaction.commit();
        committed.add(messageId);
      } else {
        await transaction.rollback();
      }
    }
    const consumer = await newSimpleConsumer(name, name);
    assert.deepEqual(new Set((await receiveSome(consumer, committed.size)).keys()), committed);
    assert.equal((await consumer.receive(32, LONG_LEASE_MS)).length, 0, 'more than was committed');
    await close(producer, consumer);
  },

  // It does not know at first, and commits when it is asked again.
  async transaction_asked_after(name) {
    let asked = 0;
    const producer = await newTransactionProducer(name, () =>
      ++asked < 2 ? TransactionResolution.UNKNOWN : TransactionResolution.COMMIT);
    const started = Date.now();
    const { messageId } = await producer.send(message(name, 'forgotten'), producer.beginTransaction());
    const consumer = await newSimpleConsumer(name, name);
    const received = [...(await receiveSome(consumer, 1)).keys()];
    const waitedMs = Date.now() - started;
    assert.deepEqual(received, [messageId]);
    assert.equal(asked, 2, 'times asked');
    assert.equal((await consumer.receive(32, LONG_LEASE_MS)).length, 0, 'committed twice');
    await close(producer, consumer);
    return `committed after ${waitedMs} ms`;
  },

  async fifo_order(name) {
    const [groups, each] = [10, 50];
    const producer = await newProducer(name);
    await Promise.all(Array.from({ length: groups }, async (_, group) => {
      for (let number = 0; number < each; number++) {
        await send(producer, message(name, `${number}`, { messageGroup: `group-${group}` }));
      }
    }));
    const seen = new Map();
    let count = 0;
    const push = await newPushConsumer(name, name, view => {
      if (!seen.has(view.messageGroup)) seen.set(view.messageGroup, []);
      seen.get(view.messageGroup).push(view.body.toString());
      count++;
      return ConsumeResult.SUCCESS;
    });
    await waitUntil('all FIFO messages are handled', () => count >= groups * each);
    await closePush(push, producer, name, seen.keys());
    await close(producer);
    const expected = Array.from({ length: each }, (_, number) => `${number}`);
    assert.equal(seen.size, groups);
    for (const bodies of seen.values()) assert.deepEqual(bodies, expected);
  },

  async shared_group(name) {
    const count = 1_000;
    const producer = await newProducer(name);
    const ids = await sendMany(producer, name, count, 16);
    const shared = [];
    const others = [];
    const shares = [0, 0, 0];
    const member = async (place, group, mine) => {
      const consumer = await newSimpleConsumer(name, group);
      while (mine.length < count) {
        for (const view of await consumer.receive(32, LONG_LEASE_MS)) {
          await consumer.ack(view);
          mine.push(view.messageId);
          shares[place]++;
        }
      }
      await close(consumer);
    };
    await Promise.all([member(0, name, shared), member(1, name, shared), member(2, `${name}-other`, others)]);
    assert.deepEqual(sorted(shared), sorted(ids));
    assert.deepEqual(sorted(others), sorted(ids));
    assert(shares[0] > 0 && shares[1] > 0, `shares ${shares}`);
    await close(producer);
    return `shares ${shares}`;
  },

  async concurrent_sends(name) {
    const producer = await newProducer(name);
    const ids = await sendMany(producer, name, 500, 500);
    const consumer = await newSimpleConsumer(name, name);
    assert.deepEqual(sorted((await receiveSome(consumer, 500)).keys()), sorted(ids));
    await close(producer, consumer);
  },

  async push_all(name) {
    const producer = await newProducer(name);
    const handled = [];
    const push = await newPushConsumer(name, name, view => {
      handled.push(view.messageId);
      return ConsumeResult.SUCCESS;
    });
    const ids = await sendMany(producer, name, 1_000, 16);
    await waitUntil('all messages are handled', () => handled.length >= 1_000);
    await closePush(push, producer, name);
    assert.deepEqual(sorted(handled), sorted(ids));
    // What the push consumer left unacknowledged would be visible again by now.
    const consumer = await newSimpleConsumer(name, name);
    for (const left of await consumer.receive(32, LONG_LEASE_MS)) assert.equal(left.body.toString(), WAKE, 'left');
    await close(consumer, producer);
  },

  async push_retry(name) {
    const producer = await newProducer(name);
    const id = await send(producer, message(name, 'again'));
    const attempts = [];
    const times = [];
    const push = await newPushConsumer(name, name, view => {
      attempts.push(view.deliveryAttempt);
      times.push(Date.now());
      return attempts.length === 1 || view.messageId !== id ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    });
    await waitUntil('the message comes again', () => attempts.length >= 2);
    await closePush(push, producer, name);
    await close(producer);
    assert.deepEqual(attempts, [1, 2]);
    // This client reads whole seconds and takes them for milliseconds, so its delay is next to nothing.
    assert(times[1] - times[0] < 5_000, `again after ${times[1] - times[0]} ms`);
    return `again after ${times[1] - times[0]} ms`;
  },

  // The group's limit is one retry: two deliveries, then the dead letter queue.
  async push_dead_letter(name) {
    const producer = await newProducer(name);
    const id = await send(producer, message(name, 'never'));
    let handled = 0;
    const push = await newPushConsumer(name, name, () => {
      handled++;
      return ConsumeResult.FAILURE;
    });
    await waitUntil('two deliveries', () => handled >= 2);
    await deadLetter(name, id);
    assert.equal(handled, 2, 'deliveries');
    await closePush(push, producer, name);
    await close(producer);
  },

  async fifo_retry_blocks(name) {
    const producer = await newProducer(name);
    for (const body of ['first', 'second']) await send(producer, message(name, body, { messageGroup: 'one-group' }));
    const seen = [];
    const push = await newPushConsumer(name, name, view => {
      seen.push(view.body.toString());
      return seen.length < 3 ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    });
    await waitUntil('both messages are handled', () => seen.length >= 4);
    await closePush(push, producer, name, ['one-group']);
    await close(producer);
    assert.deepEqual(seen, ['first', 'first', 'first', 'second']);
  },

  async fifo_dead_letter(name) {
    const producer = await newProducer(name);
    const bad = await send(producer, message(name, 'bad', { messageGroup: 'one-group' }));
    await send(producer, message(name, 'good', { messageGroup: 'one-group' }));
    const seen = [];
    const push = await newPushConsumer(name, name, view => {
      seen.push(view.body.toString());
      return view.body.toString() === 'bad' ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    });
    await waitUntil('the next message is handled', () => seen.includes('good'));
    await closePush(push, producer, name, ['one-group']);
    await close(producer);
    assert.deepEqual(seen, ['bad', 'bad', 'good']);
    await deadLetter(name, bad);
  },

  // The client reads at most 4 MiB in one message, headers included: it can send 4 MiB of body but not receive them.
  async large_body(name) {
    const producer = await newProducer(name);
    const body = Buffer.alloc((4 << 20) - 4096).map((_, place) => place * 31);
    await producer.send({ topic: name, body });
    const consumer = await newSimpleConsumer(name, name);
    const view = await receiveOne(consumer, LONG_LEASE_MS);
    assert(view.body.equals(body), `the body changed, ${view.body.length} bytes`);
    await consumer.ack(view);
    await producer.send({ topic: name, body: Buffer.alloc(4 << 20, 'x') });
    // The client knows the limit from its settings and refuses more by itself.
    const problem = await problemOf(() => producer.send({ topic: name, body: Buffer.alloc((4 << 20) + 1) }));
    assert.match(`${problem}`, /max size=4194304/);
    await close(producer, consumer);
  },

  async refused_messages(name) {
    const producer = await newProducer(name);
    const many = new Map(Array.from({ length: 129 }, (_, number) => [`p${number}`, 'v']));
    const refused = [
      [41302, message(name, '')],
      [43101, message(name, 'refused', { properties: many })],
      [40007, message(name, 'refused', { properties: new Map([['KEYS', 'v']]) })],
      [40004, message(name, 'refused', { tag: 'a|b' })],
      [40005, message(name, 'refused', { keys: [' '] })],
    ];
    for (const [code, one] of refused) {
      const problem = await problemOf(() => producer.send(one));
      assert.equal(problem?.code, code, `expected ${code}: ${problem}`);
    }
    const problem = await problemOf(() => producer.send(message(name, 'refused', { messageGroup: 'group' })));
    assert.match(`${problem}`, /not match/);
    await send(producer, message(name, 'taken'));
    await close(producer);
  },

  async unknown_topic() {
    const starting = await problemOf(() => newProducer('no-such-topic'));
    assert.match(`${starting?.cause?.cause ?? starting?.cause ?? starting}`, /40402/);
    const producer = await newProducer('round_trip');
    const sending = await problemOf(() => send(producer, message('no-such-topic', 'lost')));
    assert.equal(sending?.code, 40402, `send to an unknown topic: ${sending}`);
    await close(producer);
  },

  async client_restart(name) {
    const first = await newProducer(name);
    const ids = await sendMany(first, name, 20, 4);
    await close(first);
    let consumer = await newSimpleConsumer(name, name);
    const found = new Set();
    while (found.size < 10) {
      for (const view of await consumer.receive(10 - found.size, LONG_LEASE_MS)) {
        await consumer.ack(view);
        found.add(view.messageId);
      }
    }
    await close(consumer);
    const second = await newProducer(name);
    for (const id of await sendMany(second, name, 20, 4)) ids.add(id);
    consumer = await newSimpleConsumer(name, name);
    for (const id of (await receiveSome(consumer, 30)).keys()) {
      assert(!found.has(id), 'an acknowledged message came again');
      found.add(id);
    }
    assert.deepEqual(sorted(found), sorted(ids));
    await close(second, consumer);
  },

  // The clients live on while the broker is killed and started again at the same address.
  async master_restart(name) {
    const producer = await newProducer(name);
    const consumer = await newSimpleConsumer(name, name);
    const handled = new Set();
    const push = await newPushConsumer(name, `${name}-push`, view => {
      handled.add(view.messageId);
      return ConsumeResult.SUCCESS;
    });
    const ids = await sendMany(producer, name, 20, 4);
    const found = new Set((await receiveSome(consumer, 20)).keys());
    await waitForContinue(name);
    const restarted = Date.now();
    const seconds = () => ((Date.now() - restarted) / 1_000).toFixed(1);
    let failures = 0;
    for (let sent = 0; sent < 20;) {
      try {
        ids.add(await send(producer, message(name, 'after')));
        sent++;
      } catch (problem) {
        failures++;
        assert(Date.now() < restarted + LIMIT_MS, `no send: ${problem}`);
        await sleep(200);
      }
    }
    const sending = seconds();
    const holdsAll = some => [...ids].every(id => some.has(id));
    while (!holdsAll(found)) {
      assert(Date.now() < restarted + 2 * LIMIT_MS, `${found.size} of ${ids.size} messages`);
      try {
        for (const view of await consumer.receive(32, LONG_LEASE_MS)) {
          await consumer.ack(view);
          found.add(view.messageId);
        }
      } catch {
        await sleep(200);
      }
    }
    const receiving = seconds();
    await waitUntil('the push consumer handled everything', () => holdsAll(handled));
    const pushing = seconds();
    await closePush(push, producer, name);
    await close(consumer, producer);
    return `${failures} failed sends; sends again after ${sending} s, receives ${receiving} s, push ${pushing} s`;
  },
};

// Finds message `id` in the group's dead letter queue, which exists once something was written to it.
async function deadLetter(group, id) {
  const topic = `%DLQ%${group}`;
  const deadline = Date.now() + LIMIT_MS;
  let consumer;
  while (!consumer) {
    try {
      consumer = await newSimpleConsumer(topic, `${group}-dead`);
    } catch (missing) {
      assert(Date.now() < deadline, `no dead letter queue: ${missing}`);
      await sleep(1_000);
    }
  }
  const dead = await receiveOne(consumer, LONG_LEASE_MS);
  assert.equal(dead.messageId, id);
  await consumer.ack(dead);
  await close(consumer);
}

// The program.

const continued = new Map();

function print(line) {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

// Tells the starter that the scenario waits, and resolves when it may go on.
function waitForContinue(name) {
  print({ scenario: name, waits: true });
  return new Promise(resolve => continued.set(name, resolve));
}

async function run(scenario) {
  const start = Date.now();
  const seconds = () => (Date.now() - start) / 1_000;
  try {
    assert(Object.hasOwn(scenarios, scenario), 'no such scenario');
    const detail = (await scenarios[scenario](scenario)) ?? '';
    print({ scenario, ok: true, detail, seconds: seconds() });
  } catch (problem) {
    print({ scenario, ok: false, detail: `${problem?.stack ?? problem}`, seconds: seconds() });
  }
}

async function main() {
  const names = process.argv.slice(2);
  if (names[0] === '--endpoint') endpoint = names.splice(0, 2)[1];
  if (await load(endpoint, names)) process.exit(0);
  const running = names.map(run);
  if (names.length === 0) {
    for await (const text of readline.createInterface({ input: process.stdin })) {
      const line = text.trim();
      if (line.startsWith('continue ')) continued.get(line.slice('continue '.length))();
      else if (line) running.push(run(line));
    }
  }
  await Promise.all(running);
  process.exit(0);
}

main();
