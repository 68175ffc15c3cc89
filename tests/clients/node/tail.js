'use strict'
// A partition whose newest records are gone: reads `count` records, gets to the end, and then reads one that is
// appended there. Prints the values.

const { Kafka, logLevel } = require('kafkajs')
const { until } = require('./until.js')

const { bootstrap, topic, group, count } = JSON.parse(process.argv[2])
const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.ERROR })

async function main() {
  const consumer = kafka.consumer({ groupId: group })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  const values = []
  await consumer.run({ eachMessage: async ({ message }) => { values.push(message.value.toString()) } })
  await until('the records before the end', async () => values.length === count)
  const producer = kafka.producer()
  await producer.connect()
  await producer.send({ topic, messages: [{ key: 'k', value: 'later' }] })
  await until('the record at the end', async () => values.includes('later'))
  await producer.disconnect()
  await consumer.disconnect()
  return values
}

main().then(
  (answer) => console.log(JSON.stringify(answer)),
  (error) => { console.error(error); process.exit(1) },
)
