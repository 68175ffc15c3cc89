'use strict'
// A session of @platformatic/kafka with the default configuration. Prints its results as one JSON line.

const { once } = require('node:events')
const { pathToFileURL } = require('node:url')
const { until } = require('./until')

const asked = JSON.parse(process.argv[2])
const base = { clientId: 'platformatic', bootstrapBrokers: [asked.bootstrap] }
const PARTITIONS = [0, 1, 2, 3]
const numbers = (offsets) => Object.fromEntries(offsets.map((offset, partition) => [partition, Number(offset)]))

async function produce({ Producer, stringSerializers }, codec) {
  const producer = new Producer({ ...base, serializers: stringSerializers, compression: codec, idempotent: true })
  const produced = []
  for (const partition of PARTITIONS) {
    const messages = []
    for (let n = partition; n < asked.count; n += PARTITIONS.length) {
      const value = `${codec} ${n} again and again and again and again`
      messages.push({ topic: asked.topic, partition, key: value, value, headers: { trace: `of ${value}` } })
    }
    const { offsets: [{ offset }] } = await producer.send({ messages, acks: -1 })
    messages.forEach(({ key, value, headers }, n) => {
      produced.push({ partition, offset: Number(offset) + n, key, value, trace: headers.trace })
    })
  }
  await producer.close()
  return produced
}

function plain({ partition, offset, key, value, headers }) {
  return { partition, offset: Number(offset), key, value, trace: headers.get('trace') }
}

async function take(stream, count) {
  const messages = []
  for await (const message of stream) {
    messages.push(message)
    if (messages.length === count) return messages
  }
  throw new Error('the stream ended')
}

async function members(admin, count) {
  return until('the group is balanced', async () => {
    const { state, members: found } = (await admin.describeGroups({ groups: [asked.group] })).get(asked.group)
    const owned = {}
    for (const { id, assignments } of found.values()) {
      owned[id] = assignments?.get(asked.topic)?.partitions ?? []
    }
    const balanced = state === 'STABLE' && found.size === count && Object.values(owned).flat().length === 4
    return balanced && { state, owned }
  })
}

async function main() {
  const kafka = await import(pathToFileURL(require.resolve('@platformatic/kafka')))
  const codecs = ['none', 'gzip', 'snappy', 'lz4', 'zstd'].filter((name) => kafka.compressionsAlgorithms[name].available)
  const admin = new kafka.Admin(base)
  const configs = [{ name: 'retention.ms', value: '7200000' }]
  await admin.createTopics({ topics: [asked.topic], partitions: 4, replicas: 1, configs })
  const produced = []
  for (const codec of codecs) produced.push(...(await produce(kafka, codec)))

  const joining = { ...base, groupId: asked.group, deserializers: kafka.stringDeserializers, heartbeatInterval: 300 }
  const reading = { topics: [asked.topic], mode: 'committed', fallbackMode: 'earliest', maxWaitTime: 300 }
  const first = new kafka.Consumer(joining)
  const stream = await first.consume({ ...reading, autocommit: false })
  const messages = await take(stream.iterator({ destroyOnReturn: false }), produced.length)
  const last = new Map(messages.map((message) => [message.partition, message]))
  const commits = [...last.values()].map(({ partition, offset }) => ({
    topic: asked.topic, partition, offset: offset + 1n, leaderEpoch: -1,
  }))
  await first.commit({ offsets: commits })
  stream.resume()
  const alone = await members(admin, 1)
  const second = new kafka.Consumer(joining)
  const other = await second.consume({ ...reading, autocommit: false })
  other.resume()
  const both = await members(admin, 2)
  await second.close(true)
  const left = await members(admin, 1)

  const sum = (values) => Number(values.reduce((total, value) => total + value, 0n))
  const topics = [{ topic: asked.topic, partitions: PARTITIONS }]
  const committed = (await first.listCommittedOffsets({ topics })).get(asked.topic)
  const ends = (await first.listOffsets({ topics: [asked.topic] })).get(asked.topic)
  const lag = sum((await first.getLag({ topics: [asked.topic] })).get(asked.topic))
  await first.close(true)

  const middle = plain(messages[messages.length >> 1])
  const seeker = new kafka.Consumer({ ...joining, groupId: `${asked.group}-seek` })
  const offsets = PARTITIONS.map((partition) => ({
    topic: asked.topic, partition, offset: partition === middle.partition ? BigInt(middle.offset) : ends[partition],
  }))
  const sought = await seeker.consume({ ...reading, mode: 'manual', offsets, autocommit: false })
  const [message] = await once(sought, 'data')
  await seeker.close(true)

  const resources = [{ resourceType: 2, resourceName: asked.topic }]
  const [{ configs: described }] = await admin.describeConfigs({ resources })
  await admin.deleteGroups({ groups: [asked.group] })
  await admin.deleteTopics({ topics: [asked.topic] })
  await until('the topic is gone', async () => !(await admin.listTopics()).includes(asked.topic))
  const gone = !(await admin.listGroups()).has(asked.group)
  await admin.close()
  return {
    produced, consumed: messages.map(plain), first: alone.owned, second: both.owned, last: left.owned,
    state: both.state, committed: numbers(committed), ends: numbers(ends), lag, sought: plain(message),
    config: Object.fromEntries(described.map(({ name, value }) => [name, value])), gone, codecs,
  }
}

main().then(
  (answer) => console.log(JSON.stringify(answer)),
  (error) => { console.error(error); process.exit(1) },
)
