'use strict'
// Calls the function until it returns a value, for at least half a minute.

const { setTimeout: pause } = require('node:timers/promises')

async function until(what, ready) {
  for (let tries = 0; tries < 1500; tries++) {
    const answer = await ready()
    if (answer) return answer
    await pause(20)
  }
  throw new Error(`waited in vain: ${what}`)
}

module.exports = { until }
