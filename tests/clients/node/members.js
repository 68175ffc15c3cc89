'use strict'
// Two members of kafkajs in one group, of which the second leaves; then a seek. Prints its results as one JSON line.

const { Kafka, AssignerProtocol, logLevel } = require('kafkajs')
const { until } = require('./until')

const { bootstrap, topic, group } = JSON.parse(process.argv[2])
const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.ERROR })

async function join(seen) {
  const consumer = kafka.consumer({ groupId: group, heartbeatInterval: 300, maxWaitTimeInMs: 300 })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({
    eachMessage: async ({ partition, message }) => { seen.push([partition, message.offset, message.value.toString()]) },
  })
  return consumer
}

async function members(admin, count) {
  return until('the group is balanced', async () => {
    const { groups: [{ state, members: found }] } = await admin.describeGroups([group])
    if (state !== 'Stable' || found.length !== count) return null
    return found.map(({ memberAssignment }) => AssignerProtocol.MemberAssignment.decode(memberAssignment).assignment[topic])
  })
}

async function main() {
  const admin = kafka.admin()
  await admin.connect()
  await admin.createTopics({ topics: [{ topic, numPartitions: 4 }] })
  const producer = kafka.producer({ idempotent: true })
  await producer.connect()
  const messages = [0, 1, 2, 3].map((partition) => ({ partition, value: `of ${partition}` }))
  await producer.send({ topic, messages })
  await producer.disconnect()
  const seen = []
  const first = await join(seen)
  await until('all records', () => seen.length === 4)
  const alone = await members(admin, 1)
  const second = await join([])
  const both = await members(admin, 2)
  await second.disconnect()
  const left = await members(admin, 1)
  const [partition, offset] = seen[2]
  first.seek({ topic, partition, offset })
  const again = await until('the record again', () => seen[4])
  await first.disconnect()
  const lags = await Promise.all([admin.fetchTopicOffsets(topic), admin.fetchOffsets({ groupId: group, topics: [topic] })])
  const [ends, [{ partitions: committed }]] = lags
  const lag = ends.map(({ partition: one, high }) => high - committed.find((each) => each.partition === one).offset)
  await admin.disconnect()
  return { first: alone, second: both, last: left, sought: again, wanted: seen[2], lag }
}

main().then(
  (answer) => console.log(JSON.stringify(answer)),
  (error) => { console.error(error); process.exit(1) },
)
