'use strict'
// A session of the default kafkajs client: admin, producer, group consumer. Prints its results as one JSON line.

const { Kafka, CompressionTypes, logLevel } = require('kafkajs')

const { bootstrap, topic, group, count } = JSON.parse(process.argv[2])
const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.ERROR })

const text = (content) => (content === null || content === undefined ? null : content.toString())

async function produce() {
  const producer = kafka.producer()
  await producer.connect()
  const messages = []
  for (let n = 0; n < count; n++) {
    messages.push({ key: `k${n}`, value: `v${n}`, headers: { trace: `t${n}`, list: ['a', 'b'] } })
  }
  const plain = await producer.send({ topic, messages })
  const zipped = await producer.send({
    topic, compression: CompressionTypes.GZIP, messages: [{ key: null, value: null }, { value: 'last' }],
  })
  await producer.disconnect()
  return [plain[0], zipped[0]].map(({ errorCode, baseOffset }) => ({ errorCode, baseOffset }))
}

async function consume() {
  const consumer = kafka.consumer({ groupId: group })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  const records = []
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, (event) => reject(event.payload.error))
    consumer.run({
      eachMessage: async ({ message }) => {
        const headers = Object.entries(message.headers).map(([name, value]) => [name, [].concat(value).map(text)])
        records.push({ offset: message.offset, key: text(message.key), value: text(message.value), headers })
        if (records.length === count + 2) resolve()
      },
    }).catch(reject)
  })
  await consumer.disconnect()
  return records
}

async function main() {
  const admin = kafka.admin()
  await admin.connect()
  const created = await admin.createTopics({ topics: [{ topic, numPartitions: 1 }] })
  const produced = await produce()
  const records = await consume()
  const ends = await admin.fetchTopicOffsets(topic)
  const [{ partitions: committed }] = await admin.fetchOffsets({ groupId: group, topics: [topic] })
  const { groups: [described] } = await admin.describeGroups([group])
  const { groups } = await admin.listGroups()
  await admin.deleteGroups([group])
  await admin.deleteTopics({ topics: [topic] })
  await admin.disconnect()
  return {
    created, produced, records, end: ends[0].high, committed: committed[0].offset, state: described.state,
    listed: groups.some(({ groupId }) => groupId === group),
  }
}

main().then(
  (answer) => console.log(JSON.stringify(answer)),
  (error) => { console.error(error); process.exit(1) },
)
