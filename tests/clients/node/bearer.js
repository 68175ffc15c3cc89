'use strict'
// kafkajs with tokens: reads the token from a file before each login, and sends records for a time. Prints their number, or the error.

const { readFileSync } = require('node:fs')
const { setTimeout: pause } = require('node:timers/promises')
const { Kafka, logLevel } = require('kafkajs')

const { bootstrap, topic, file, lasts_ms: lastsMs } = JSON.parse(process.argv[2])

async function main() {
  let logins = 0
  const oauthBearerProvider = async () => {
    logins++
    return { value: readFileSync(file, 'utf8'), extensions: { traceId: 't1' } }
  }
  const kafka = new Kafka({
    brokers: [bootstrap], logLevel: logLevel.NOTHING, retry: { retries: 0 }, reauthenticationThreshold: 1500,
    sasl: { mechanism: 'oauthbearer', oauthBearerProvider },
  })
  const producer = kafka.producer()
  let sent = 0
  try {
    await producer.connect()
    const end = Date.now() + lastsMs
    do {
      await producer.send({ topic, messages: [{ value: `${sent++}` }] })
      await pause(50)
    } while (Date.now() < end)
    return { sent, logins }
  } catch (error) {
    return { error: error.message, logins }
  } finally {
    await producer.disconnect()
  }
}

main().then(
  (answer) => console.log(JSON.stringify(answer)),
  (error) => { console.error(error); process.exit(1) },
)
