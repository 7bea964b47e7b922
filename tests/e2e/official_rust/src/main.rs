//! Runs the client API's conformance scenarios with the official Rust client, unchanged.
//!
//!     scenarios --endpoint 127.0.0.1:8081 [scenario ...]
//!
//! Scenarios named as arguments run at the same time. Without any, names are read from standard input, one a line,
//! until it ends; a line "continue NAME" lets a scenario go on that said it waits. Each scenario prints one JSON line.
//!
//! The released client has producers and simple consumers: no push consumer, no recall, no change of a lease.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::sleep;

type Failed = String;
type Outcome = Result<String, Failed>;

// The client gives a receive no more time than it asks the broker to wait; a broker waits for 20 s at most.
const AWAIT: Duration = Duration::from_secs(23);
const LIMIT: Duration = Duration::from_secs(60);
const LONG_LEASE: Duration = Duration::from_secs(60);
const SHORT_LEASE: Duration = Duration::from_secs(10);
// Longer than the client's 3 s: on a busy machine a send that is tried again is stored twice.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

static ENDPOINT: OnceLock<String> = OnceLock::new();

macro_rules! expect {
    ($holds:expr, $($what:tt)*) => {
        if !$holds {
            return Err(format!($($what)*));
        }
    };
}

fn told(problem: impl std::fmt::Display) -> Failed {
    problem.to_string()
}

// Clients.

fn client_option() -> ClientOption {
    let mut option = ClientOption::default();
    option.set_access_url(ENDPOINT.get().expect("the endpoint is set").as_str());
    option.set_enable_tls(false);
    option.set_timeout(REQUEST_TIMEOUT);
    option.set_long_polling_timeout(AWAIT);
    option.set_access_key("access-key");
    option.set_secret_key("secret-key");
    option
}

fn producer_option(topics: &[&str]) -> ProducerOption {
    let mut option = ProducerOption::default();
    option.set_topics(topics.to_vec());
    option
}

async fn new_producer(topics: &[&str]) -> Result<Producer, Failed> {
    let mut producer = Producer::new(producer_option(topics), client_option()).map_err(told)?;
    producer.start().await.map_err(told)?;
    Ok(producer)
}

async fn new_transaction_producer(
    topic: &str,
    check: impl Fn() -> TransactionResolution + Send + Sync + 'static,
) -> Result<Producer, Failed> {
    let checker = Box::new(move |_id: String, _message: MessageView| check());
    let made = Producer::new_transaction_producer(producer_option(&[topic]), client_option(), checker);
    let mut producer = made.map_err(told)?;
    producer.start().await.map_err(told)?;
    Ok(producer)
}

async fn new_consumer(topic: &str, group: &str) -> Result<SimpleConsumer, Failed> {
    let mut option = SimpleConsumerOption::default();
    option.set_consumer_group(group);
    option.set_topics(vec![topic]);
    let mut consumer = SimpleConsumer::new(option, client_option()).map_err(told)?;
    consumer.start().await.map_err(told)?;
    Ok(consumer)
}

fn all() -> FilterExpression {
    FilterExpression::new(FilterType::Tag, "*")
}

// Messages.

fn plain(topic: &str, body: &str) -> MessageBuilder {
    MessageBuilder::builder().set_topic(topic).set_body(body.as_bytes().to_vec())
}

async fn send(producer: &Producer, message: MessageBuilder) -> Result<String, Failed> {
    let receipt = producer.send(message.build().map_err(told)?).await.map_err(told)?;
    Ok(receipt.message_id().to_string())
}

async fn send_many(producer: &Arc<Producer>, topic: &str, count: usize, inflight: usize) -> Result<HashSet<String>, Failed> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut senders = JoinSet::new();
    for _ in 0..inflight {
        let (producer, next, topic) = (producer.clone(), next.clone(), topic.to_string());
        senders.spawn(async move {
            let mut ids = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Ok::<_, Failed>(ids);
                }
                ids.push(send(&producer, plain(&topic, &format!("body {number}"))).await?);
            }
        });
    }
    let mut ids = HashSet::new();
    while let Some(sent) = senders.join_next().await {
        ids.extend(sent.map_err(told)??);
    }
    expect!(ids.len() == count, "{} ids of {count} messages", ids.len());
    Ok(ids)
}

fn stop(producer: Arc<Producer>) -> Result<Producer, Failed> {
    Arc::try_unwrap(producer).map_err(|_| "the producer is in use".to_string())
}

async fn receive_some(
    consumer: &SimpleConsumer,
    topic: &str,
    filter: &FilterExpression,
    count: usize,
) -> Result<HashMap<String, MessageView>, Failed> {
    let mut found = HashMap::new();
    let began = Instant::now();
    while found.len() < count {
        expect!(began.elapsed() < LIMIT, "{} of {count} messages", found.len());
        for view in consumer.receive_with(topic, filter, 32, LONG_LEASE).await.map_err(told)? {
            consumer.ack(&view).await.map_err(told)?;
            let id = view.message_id().to_string();
            expect!(found.insert(id.clone(), view).is_none(), "message {id} twice");
        }
    }
    Ok(found)
}

async fn receive_one(consumer: &SimpleConsumer, topic: &str, lease: Duration) -> Result<MessageView, Failed> {
    let began = Instant::now();
    loop {
        let views = consumer.receive_with(topic, &all(), 1, lease).await.map_err(told)?;
        if let Some(view) = views.into_iter().next() {
            return Ok(view);
        }
        expect!(began.elapsed() < LIMIT, "no message within {LIMIT:?}");
    }
}

async fn nothing_more(consumer: &SimpleConsumer, topic: &str, what: &str) -> Result<(), Failed> {
    let more = consumer.receive_with(topic, &all(), 32, LONG_LEASE).await.map_err(told)?;
    expect!(more.is_empty(), "{what}");
    Ok(())
}

fn body(view: &MessageView) -> String {
    String::from_utf8_lossy(view.body()).to_string()
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as i64
}

// Scenarios: names are those of tests/e2e/scenarios.py; each scenario's topic and group are called as the scenario.

async fn start_stop(name: &str) -> Outcome {
    let producer = new_producer(&[name]).await?;
    let consumer = new_consumer(name, name).await?;
    sleep(Duration::from_secs(1)).await;
    consumer.shutdown().await.map_err(told)?;
    producer.shutdown().await.map_err(told)?;
    Ok(String::new())
}

async fn round_trip(name: &str) -> Outcome {
    let producer = new_producer(&[name]).await?;
    let mut sent = BTreeMap::new();
    for number in 0..100 {
        let message = plain(name, &format!("body {number} grün"))
            .set_tag(format!("tag-{}", number % 3))
            .set_keys(vec![format!("key-{number}"), "second-key".to_string()])
            .set_properties(HashMap::from([
                ("number".to_string(), number.to_string()),
                ("größe".to_string(), "weiß".to_string()),
            ]));
        sent.insert(send(&producer, message).await?, number);
    }
    let consumer = new_consumer(name, name).await?;
    let found = receive_some(&consumer, name, &all(), 100).await?;
    for (id, number) in &sent {
        let view = found.get(id).ok_or(format!("message {id} did not come"))?;
        expect!(body(view) == format!("body {number} grün"), "body {}", body(view));
        expect!(view.tag() == Some(format!("tag-{}", number % 3).as_str()), "tag {:?}", view.tag());
        let mut keys = view.keys().to_vec();
        keys.sort();
        expect!(keys == [format!("key-{number}"), "second-key".to_string()], "keys {keys:?}");
        let properties = view.properties();
        expect!(properties.len() == 2 && properties["number"] == number.to_string(), "properties {properties:?}");
        expect!(properties["größe"] == "weiß", "properties {properties:?}");
        expect!(view.delivery_attempt() == 1, "attempt {}", view.delivery_attempt());
        expect!(view.topic() == name && !view.born_host().is_empty(), "topic or host");
        expect!((now_ms() / 1_000 - view.born_timestamp()).abs() < 300, "born {}", view.born_timestamp());
    }
    consumer.shutdown().await.map_err(told)?;
    producer.shutdown().await.map_err(told)?;
    Ok("100 messages".to_string())
}

async fn acknowledged_once(name: &str) -> Outcome {
    let producer = Arc::new(new_producer(&[name]).await?);
    send_many(&producer, name, 10, 1).await?;
    let consumer = new_consumer(name, name).await?;
    let mut count = 0;
    while count < 10 {
        for view in consumer.receive_with(name, &all(), 32, SHORT_LEASE).await.map_err(told)? {
            consumer.ack(&view).await.map_err(told)?;
            count += 1;
        }
    }
    let began = Instant::now();
    while began.elapsed() < SHORT_LEASE + Duration::from_secs(1) {
        nothing_more(&consumer, name, "messages came again").await?;
    }
    consumer.shutdown().await.map_err(told)?;
    stop(producer)?.shutdown().await.map_err(told)?;
    Ok(String::new())
}

async fn lease_end_redelivers(name: &str) -> Outcome {
    let producer = new_producer(&[name]).await?;
    let id = send(&producer, plain(name, "once more")).await?;
    let consumer = new_consumer(name, name).await?;
    let first = receive_one(&consumer, name, SHORT_LEASE).await?;
    let received = Instant::now();
    let second = receive_one(&consumer, name, SHORT_LEASE).await?;
    let waited = received.elapsed();
    expect!(first.message_id() == id && second.message_id() == id, "another message");
    expect!((first.delivery_attempt(), second.delivery_attempt()) == (1, 2), "attempts");
    expect!(waited > Duration::from_secs(9) && waited < Duration::from_secs(15), "again after {waited:?}");
    expect!(consumer.ack(&first).await.is_err(), "the old handle is taken");
    consumer.ack(&second).await.map_err(told)?;
    consumer.shutdown().await.map_err(told)?;
    producer.shutdown().await.map_err(told)?;
    Ok(format!("again after {waited:?}"))
}

async fn empty_receive(name: &str) -> Outcome {
    let consumer = new_consumer(name, name).await?;
    let asked = Instant::now();
    nothing_more(&consumer, name, "a message").await?;
    let waited = asked.elapsed();
    expect!(waited > Duration::from_secs(19) && waited < AWAIT, "it took {waited:?}");
    consumer.shutdown().await.map_err(told)?;
    Ok(format!("{waited:?}"))
}

async fn receive_wakes(name: &str) -> Outcome {
    let producer = new_producer(&[name]).await?;
    let consumer = new_consumer(name, name).await?;
    let topic = name.to_string();
    let poll = tokio::spawn(async move {
        let views = consumer.receive_with(&topic, &all(), 32, LONG_LEASE).await.map_err(told)?;
        Ok::<_, Failed>((consumer, views, Instant::now()))
    });
    sleep(Duration::from_millis(1_500)).await;
    let sent = Instant::now();
    let id = send(&producer, plain(name, "wakes")).await?;
    let (consumer, views, received) = poll.await.map_err(told)??;
    expect!(views.len() == 1 && views[0].message_id() == id, "{} messages", views.len());
    let took = received.saturating_duration_since(sent);
    expect!(took < Duration::from_secs(2), "delivered after {took:?}");
    consumer.ack(&views[0]).await.map_err(told)?;
    consumer.shutdown().await.map_err(told)?;
    producer.shutdown().await.map_err(told)?;
    Ok(format!("{took:?}"))
}

async fn tag_filter(name: &str) -> Outcome {
    let producer = new_producer(&[name]).await?;
    for number in 0..30 {
        let tag = ["a", "b", "c"][number % 3];
        let properties = HashMap::from([("x".to_string(), number.to_string())]);
        send(&producer, plain(name, "tagged").set_tag(tag).set_properties(properties)).await?;
    }
    let consumer = new_consumer(name, name).await?;
    let tags = FilterExpression::new(FilterType::Tag, "a || b");
    let found = receive_some(&consumer, name, &tags, 20).await?;
    expect!(found.values().all(|view| view.tag() != Some("c")), "another tag");
    let more = consumer.receive_with(name, &tags, 32, LONG_LEASE).await.map_err(told)?;
    expect!(more.is_empty(), "messages beyond the filter");
    let sql_consumer = new_consumer(name, &format!("{name}-sql")).await?;
    let sql = FilterExpression::new(FilterType::Sql, "x > 3 AND x <= 12");
    let found = receive_some(&sql_consumer, name, &sql, 9).await?;
    let mut numbers: Vec<i32> = found.values().map(|view| view.properties()["x"].parse().unwrap_or(-1)).collect();
    numbers.sort();
    expect!(numbers == (4..=12).collect::<Vec<i32>>(), "numbers {numbers:?}");
    let bad = FilterExpression::new(FilterType::Sql, "x > 3 AND");
    let refused = sql_consumer.receive_with(name, &bad, 32, LONG_LEASE).await;
    expect!(
        refused.as_ref().is_err_and(|problem| format!("{problem:?}").contains("ILLEGAL_FILTER_EXPRESSION")),
        "the bad filter: {refused:?}"
    );
    consumer.shutdown().await.map_err(told)?;
    sql_consumer.shutdown().await.map_err(told)?;
    producer.shutdown().await.map_err(told)?;
    Ok(String::new())
}

async fn half(producer: &Producer, name: &str, text: &str) -> Result<impl Transaction, Failed> {
    let message = MessageBuilder::transaction_message_builder(name, text.as_bytes().to_vec());
    producer.send_transaction_message(message.build().map_err(told)?).await.map_err(told)
}

async fn transaction_ends(name: &str) -> Outcome {
    let producer = new_transaction_producer(name, || TransactionResolution::UNKNOWN).await?;
    let mut committed = HashSet::new();
    for number in 0..10 {
        let transaction = half(&producer, name, &format!("body {number}")).await?;
        if number % 2 == 0 {
            committed.insert(transaction.message_id().to_string());
            transaction.commit().await.map_err(told)?;
        } else {
            transaction.rollback().await.map_err(told)?;
        }
    }
    let consumer = new_consumer(name, name).await?;
    let found = receive_some(&consumer, name, &all(), committed.len()).await?;
    expect!(found.keys().cloned().collect::<HashSet<_>>() == committed, "others than were committed");
    nothing_more(&consumer, name, "more than was committed").await?;
    consumer.shutdown().await.map_err(told)?;
    producer.shutdown().await.map_err(told)?;
    Ok(String::new())
}

/// It does not know at first, and commits when it is asked again.
async fn transaction_asked_after(name: &str) -> Outcome {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    let producer = new_transaction_producer(name, move || match counter.fetch_add(1, Ordering::SeqCst) {
        0 => TransactionResolution::UNKNOWN,
        _ => TransactionResolution::COMMIT,
    })
    .await?;
    let began = Instant::now();
    let id = half(&producer, name, "forgotten").await?.message_id().to_string();
    let consumer = new_consumer(name, name).await?;
    let found = receive_some(&consumer, name, &all(), 1).await?;
    let waited = began.elapsed();
    expect!(found.contains_key(&id), "another message");
    expect!(asked.load(Ordering::SeqCst) == 2, "asked {} times", asked.load(Ordering::SeqCst));
    nothing_more(&consumer, name, "committed twice").await?;
    consumer.shutdown().await.map_err(told)?;
    producer.shutdown().await.map_err(told)?;
    Ok(format!("committed after {waited:?}"))
}

/// Sends to two broker groups in turn; the client ends each transaction at its access point.
async fn transaction_elsewhere(name: &str) -> Outcome {
    let producer = new_transaction_producer(name, || TransactionResolution::UNKNOWN).await?;
    let mut committed = HashSet::new();
    for number in 0..8 {
        let transaction = half(&producer, name, &format!("body {number}")).await?;
        committed.insert(transaction.message_id().to_string());
        transaction.commit().await.map_err(told)?;
    }
    let consumer = new_consumer(name, name).await?;
    let found = receive_some(&consumer, name, &all(), committed.len()).await?;
    expect!(found.keys().cloned().collect::<HashSet<_>>() == committed, "others than were committed");
    consumer.shutdown().await.map_err(told)?;
    producer.shutdown().await.map_err(told)?;
    Ok(String::new())
}

/// The client knows whole seconds.
async fn delayed(name: &str) -> Outcome {
    let producer = new_producer(&[name]).await?;
    let consumer = new_consumer(name, name).await?;
    let due_s = now_ms() / 1_000 + 6;
    let later = MessageBuilder::delay_message_builder(name, b"later".to_vec(), due_s);
    let id = send(&producer, later).await?;
    send(&producer, MessageBuilder::delay_message_builder(name, b"at once".to_vec(), due_s - 300)).await?;
    let first = receive_one(&consumer, name, LONG_LEASE).await?;
    expect!(body(&first) == "at once" && now_ms() < 1_000 * due_s, "it came late: {}", body(&first));
    consumer.ack(&first).await.map_err(told)?;
    let view = receive_one(&consumer, name, LONG_LEASE).await?;
    let late_ms = now_ms() - 1_000 * due_s;
    expect!(view.message_id() == id, "another message");
    expect!((0..2_000).contains(&late_ms), "{late_ms} ms after its time");
    expect!(view.delivery_timestamp() == Some(due_s), "delivery time {:?}", view.delivery_timestamp());
    consumer.ack(&view).await.map_err(told)?;
    consumer.shutdown().await.map_err(told)?;
    producer.shutdown().await.map_err(told)?;
    Ok(format!("{late_ms} ms after its time"))
}

/// The group is ordered: what one receive gives is handled before the next.
async fn fifo_order(name: &str) -> Outcome {
    const GROUPS: usize = 10;
    const EACH: usize = 50;
    let producer = Arc::new(new_producer(&[name]).await?);
    let mut senders = JoinSet::new();
    for group in 0..GROUPS {
        let (producer, topic) = (producer.clone(), name.to_string());
        senders.spawn(async move {
            for number in 0..EACH {
                let text = number.to_string().into_bytes();
                send(&producer, MessageBuilder::fifo_message_builder(&topic, text, format!("group-{group}"))).await?;
            }
            Ok::<_, Failed>(())
        });
    }
    while let Some(sent) = senders.join_next().await {
        sent.map_err(told)??;
    }
    let consumer = new_consumer(name, name).await?;
    let mut seen: HashMap<String, Vec<usize>> = HashMap::new();
    let began = Instant::now();
    while seen.values().map(Vec::len).sum::<usize>() < GROUPS * EACH {
        expect!(began.elapsed() < LIMIT, "not all messages came");
        for view in consumer.receive_with(name, &all(), 32, LONG_LEASE).await.map_err(told)? {
            let group = view.message_group().unwrap_or_default().to_string();
            seen.entry(group).or_default().push(body(&view).parse().map_err(told)?);
            consumer.ack(&view).await.map_err(told)?;
        }
    }
    expect!(seen.len() == GROUPS, "{} message groups", seen.len());
    for (group, numbers) in &seen {
        expect!(numbers == &(0..EACH).collect::<Vec<_>>(), "{group} out of order: {numbers:?}");
    }
    consumer.shutdown().await.map_err(told)?;
    stop(producer)?.shutdown().await.map_err(told)?;
    Ok(String::new())
}

async fn shared_group(name: &str) -> Outcome {
    const COUNT: usize = 1_000;
    let producer = Arc::new(new_producer(&[name]).await?);
    let ids = send_many(&producer, name, COUNT, 16).await?;
    let shared = Arc::new(Mutex::new(Vec::new()));
    let others = Arc::new(Mutex::new(Vec::new()));
    let mut members = JoinSet::new();
    for (group, mine) in [(name.to_string(), &shared), (name.to_string(), &shared), (format!("{name}-other"), &others)] {
        let (topic, mine) = (name.to_string(), mine.clone());
        members.spawn(async move {
            let consumer = new_consumer(&topic, &group).await?;
            let mut share = 0;
            while mine.lock().expect("no panic").len() < COUNT {
                for view in consumer.receive_with(&topic, &all(), 32, LONG_LEASE).await.map_err(told)? {
                    consumer.ack(&view).await.map_err(told)?;
                    mine.lock().expect("no panic").push(view.message_id().to_string());
                    share += 1;
                }
            }
            consumer.shutdown().await.map_err(told)?;
            Ok::<usize, Failed>(share)
        });
    }
    let mut shares = Vec::new();
    while let Some(member) = members.join_next().await {
        shares.push(member.map_err(told)??);
    }
    for found in [&shared, &others] {
        let found = found.lock().expect("no panic");
        expect!(found.len() == COUNT, "{} deliveries", found.len());
        expect!(found.iter().cloned().collect::<HashSet<_>>() == ids, "other messages than were sent");
    }
    expect!(shares.iter().all(|share| *share > 0), "shares {shares:?}");
    stop(producer)?.shutdown().await.map_err(told)?;
    Ok(format!("shares {shares:?}"))
}

async fn concurrent_sends(name: &str) -> Outcome {
    let producer = Arc::new(new_producer(&[name]).await?);
    let ids = send_many(&producer, name, 500, 500).await?;
    let consumer = new_consumer(name, name).await?;
    let found = receive_some(&consumer, name, &all(), 500).await?;
    expect!(found.keys().cloned().collect::<HashSet<_>>() == ids, "other messages than were sent");
    consumer.shutdown().await.map_err(told)?;
    stop(producer)?.shutdown().await.map_err(told)?;
    Ok(String::new())
}

async fn unknown_topic(_name: &str) -> Outcome {
    let problem = new_producer(&["no-such-topic"]).await.err();
    expect!(problem.is_some(), "a producer of an unknown topic starts");
    let producer = new_producer(&["round_trip"]).await?;
    let sent = producer.send(plain("no-such-topic", "lost").build().map_err(told)?).await;
    expect!(
        sent.as_ref().is_err_and(|problem| format!("{problem:?}").contains("TOPIC_NOT_FOUND")),
        "send to an unknown topic: {sent:?}"
    );
    producer.shutdown().await.map_err(told)?;
    Ok(String::new())
}

async fn client_restart(name: &str) -> Outcome {
    let first = Arc::new(new_producer(&[name]).await?);
    let mut ids = send_many(&first, name, 20, 4).await?;
    stop(first)?.shutdown().await.map_err(told)?;
    let consumer = new_consumer(name, name).await?;
    let mut found = HashSet::new();
    while found.len() < 10 {
        let room = 10 - found.len() as i32;
        for view in consumer.receive_with(name, &all(), room, LONG_LEASE).await.map_err(told)? {
            consumer.ack(&view).await.map_err(told)?;
            found.insert(view.message_id().to_string());
        }
    }
    consumer.shutdown().await.map_err(told)?;
    let second = Arc::new(new_producer(&[name]).await?);
    ids.extend(send_many(&second, name, 20, 4).await?);
    let consumer = new_consumer(name, name).await?;
    for id in receive_some(&consumer, name, &all(), 30).await?.into_keys() {
        expect!(found.insert(id), "an acknowledged message came again");
    }
    expect!(found == ids, "other messages than were sent");
    consumer.shutdown().await.map_err(told)?;
    stop(second)?.shutdown().await.map_err(told)?;
    Ok(String::new())
}

/// The clients live on while the broker is killed and started again at the same address.
async fn master_restart(name: &str) -> Outcome {
    let producer = Arc::new(new_producer(&[name]).await?);
    let consumer = new_consumer(name, name).await?;
    let mut ids = send_many(&producer, name, 20, 4).await?;
    let mut found: HashSet<String> = receive_some(&consumer, name, &all(), 20).await?.into_keys().collect();
    wait_for_continue(name).await;
    let began = Instant::now();
    let (mut failures, mut sent) = (0, 0);
    while sent < 20 {
        match send(&producer, plain(name, "after")).await {
            Ok(id) => {
                ids.insert(id);
                sent += 1;
            }
            Err(problem) => {
                failures += 1;
                expect!(began.elapsed() < LIMIT, "no send: {problem}");
                sleep(Duration::from_millis(200)).await;
            }
        }
    }
    let sending = began.elapsed();
    while !ids.is_subset(&found) {
        expect!(began.elapsed() < 2 * LIMIT, "{} of {} messages", found.len(), ids.len());
        match consumer.receive_with(name, &all(), 32, LONG_LEASE).await {
            Ok(views) => {
                for view in views {
                    consumer.ack(&view).await.map_err(told)?;
                    found.insert(view.message_id().to_string());
                }
            }
            Err(_) => sleep(Duration::from_millis(200)).await,
        }
    }
    let receiving = began.elapsed();
    consumer.shutdown().await.map_err(told)?;
    stop(producer)?.shutdown().await.map_err(told)?;
    Ok(format!("{failures} failed sends; sends again after {sending:?}, receives {receiving:?}"))
}

// The program.

fn print(line: serde_json::Value) {
    println!("{line}");
}

fn continued() -> &'static Mutex<HashMap<String, Arc<Notify>>> {
    static CONTINUED: OnceLock<Mutex<HashMap<String, Arc<Notify>>>> = OnceLock::new();
    CONTINUED.get_or_init(Default::default)
}

fn notice(name: &str) -> Arc<Notify> {
    continued().lock().expect("no panic").entry(name.to_string()).or_default().clone()
}

/// Tells the starter that the scenario waits, and returns when it may go on.
async fn wait_for_continue(name: &str) {
    print(json!({"scenario": name, "waits": true}));
    notice(name).notified().await;
}

async fn outcome_of(name: &str) -> Outcome {
    match name {
        "start_stop" => start_stop(name).await,
        "round_trip" => round_trip(name).await,
        "acknowledged_once" => acknowledged_once(name).await,
        "lease_end_redelivers" => lease_end_redelivers(name).await,
        "empty_receive" => empty_receive(name).await,
        "receive_wakes" => receive_wakes(name).await,
        "tag_filter" => tag_filter(name).await,
        "transaction_ends" => transaction_ends(name).await,
        "transaction_asked_after" => transaction_asked_after(name).await,
        "transaction_elsewhere" => transaction_elsewhere(name).await,
        "delayed" => delayed(name).await,
        "fifo_order" => fifo_order(name).await,
        "shared_group" => shared_group(name).await,
        "concurrent_sends" => concurrent_sends(name).await,
        "unknown_topic" => unknown_topic(name).await,
        "client_restart" => client_restart(name).await,
        "master_restart" => master_restart(name).await,
        _ => Err("no such scenario".to_string()),
    }
}

async fn run(name: String) {
    let began = Instant::now();
    // A task of its own: the client panics where it cannot connect.
    let running = name.clone();
    let outcome = tokio::spawn(async move { outcome_of(&running).await }).await.unwrap_or_else(|panic| Err(told(panic)));
    let (ok, detail) = match outcome {
        Ok(detail) => (true, detail),
        Err(problem) => (false, problem),
    };
    print(json!({"scenario": name, "ok": ok, "detail": detail, "seconds": began.elapsed().as_secs_f64()}));
}

#[tokio::main]
async fn main() {
    let mut names: Vec<String> = std::env::args().skip(1).collect();
    let mut endpoint = "127.0.0.1:8081".to_string();
    if names.first().is_some_and(|name| name == "--endpoint") && names.len() > 1 {
        endpoint = names.drain(..2).last().unwrap_or_default();
    }
    ENDPOINT.set(endpoint.replace(';', ",")).expect("set once");
    let mut running = JoinSet::new();
    if names.is_empty() {
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            match line.trim().strip_prefix("continue ") {
                Some(name) => notice(name.trim()).notify_one(),
                None if !line.trim().is_empty() => {
                    running.spawn(run(line.trim().to_string()));
                }
                None => {}
            }
        }
    } else {
        for name in names {
            running.spawn(run(name));
        }
    }
    while running.join_next().await.is_some() {}
    std::process::exit(0);
}
