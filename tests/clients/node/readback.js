'use strict'
// Reads one partition with kafkajs and the codecs for it. Prints the SHA-256 of each value by offset as one JSON line.

const { createHash } = require('crypto')
const { decompress: unzstd } = require('fzstd')
const { Kafka, CompressionCodecs, CompressionTypes, logLevel } = require('kafkajs')
const LZ4 = require('kafkajs-lz4')

CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy')
CompressionCodecs[CompressionTypes.LZ4] = new LZ4().codec
// @kafkajs/zstd needs a compiler.
CompressionCodecs[CompressionTypes.ZSTD] = () => ({ decompress: async (data) => Buffer.from(unzstd(data)) })

const { bootstrap, topic, group, count } = JSON.parse(process.argv[2])

async function main() {
  const consumer = new Kafka({ brokers: [bootstrap], logLevel: logLevel.ERROR }).consumer({ groupId: group })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  const found = {}
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, (event) => reject(event.payload.error))
    consumer.run({
      eachMessage: async ({ message }) => {
        found[message.offset] = createHash('sha256').update(message.value).digest('hex')
        if (Object.keys(found).length === count) resolve()
      },
    }).catch(reject)
  })
  await consumer.disconnect()
  return found
}

main().then(
  (answer) => console.log(JSON.stringify(answer)),
  (error) => { console.error(error); process.exit(1) },
)
