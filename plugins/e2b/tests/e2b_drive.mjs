// What E2B's documentation shows, with its published JavaScript SDK; prints what was seen as JSON.
import { Sandbox } from 'e2b'
import { Sandbox as CodeSandbox } from '@e2b/code-interpreter'
const box = await Sandbox.create({ timeoutMs: 120_000, metadata: { user: 'js' } })
const seen = {}
const done = await box.commands.run('echo out; echo err >&2')
seen.run = [done.exitCode, done.stdout, done.stderr]
await box.files.write('/home/user/a.txt', 'grüße')
seen.read = await box.files.read('/home/user/a.txt')
seen.several = (await box.files.write([{ path: '/home/user/b', data: '1' }, { path: '/tmp/c', data: '2' }])).map((one) => one.path)
seen.list = (await box.files.list('/home/user')).map((one) => one.name)
const events = []
const watch = await box.files.watchDir('/home/user', (event) => { events.push([event.name, event.type]) })
await box.files.write('/home/user/w', 'x')
const cat = await box.commands.run('cat', { background: true, stdin: true })
await box.commands.sendStdin(cat.pid, 'typed\n')
await box.commands.closeStdin(cat.pid)
seen.stdin = (await cat.wait()).stdout
const sleeper = await box.commands.run('sleep 1000', { background: true })
seen.kill = await sleeper.kill()
let shown = ''
const terminal = await box.pty.create({ rows: 30, cols: 100, onData: (data) => { shown += new TextDecoder().decode(data) } })
await box.pty.sendInput(terminal.pid, new TextEncoder().encode('stty size; exit 0\n'))
await terminal.wait()
seen.pty = shown.includes('30 100')
const pages = Sandbox.list({ query: { metadata: { user: 'js' } } })
seen.listed = (await pages.nextItems()).map((one) => one.sandboxId === box.sandboxId)
await watch.stop()
seen.watch = events
seen.url = await (await fetch(await box.downloadUrl('/home/user/a.txt', { useSignatureExpiration: 600 }))).text()

// Metadata of files, which are kept when a file is moved.
await box.files.write('/home/user/m', '1', { metadata: { author: 'ada' } })
seen.metadata = (await box.files.rename('/home/user/m', '/home/user/n')).metadata
await box.files.makeDir('/home/user/made')
seen.exists = [await box.files.exists('/home/user/m'), await box.files.exists('/home/user/made')]
await box.files.remove('/home/user/made')
seen.bytes = (await box.files.read('/home/user/b', { format: 'bytes' })).length

// A command that is connected to again, and one that fails.
const reader = await box.commands.run('read line; echo got $line', { background: true, stdin: true })
await reader.disconnect()
const connected = await box.commands.connect(reader.pid)
await box.commands.sendStdin(reader.pid, 'more\n')
seen.connected = (await connected.wait()).stdout
seen.failed = await box.commands.run('echo before; exit 3').catch((error) => [error.exitCode, error.stdout])
seen.late = await box.commands.run('sleep 1000', { timeoutMs: 300 }).catch((error) => error.name)

// Pause and resume; what runs is still there.
const kept = await box.commands.run('sleep 1000', { background: true })
seen.pause = [await box.pause(), await box.isRunning()]
const again = await Sandbox.connect(box.sandboxId, { timeoutMs: 120_000 })
seen.resumed = [await again.isRunning(), (await again.commands.list()).some((one) => one.pid === kept.pid)]
seen.metrics = (await again.getMetrics()).every((one) => one.memTotal > 0)
await again.setTimeout(60_000)
const info = await again.getInfo()
seen.info = [info.metadata.user, info.state, info.endAt > info.startedAt]

// The code interpreter, with the same sandbox.
const code = await CodeSandbox.connect(box.sandboxId)
await code.runCode('x = 41')
seen.code = [(await code.runCode('x + 1')).text, (await code.runCode('1 / 0')).error.name]
const context = await code.createCodeContext({ cwd: '/tmp' })
seen.context = (await code.runCode('import os; os.getcwd()', { context })).text

// A port, which has a name of its own where there is a domain.
if (process.env.E2B_DOMAIN) {
  await box.commands.run('python3 -m http.server 8000 --bind 127.0.0.1', { background: true })
  const headers = { 'e2b-traffic-access-token': box.trafficAccessToken }
  let status = 502
  for (const until = Date.now() + 40_000; status === 502 && Date.now() < until; ) {
    status = (await fetch(`https://${box.getHost(8000)}`, { headers })).status
  }
  seen.port = [status, (await fetch(`https://${box.getHost(8000)}`)).status]
}

const ending = await Sandbox.create({ timeoutMs: 60_000 })
const running = await ending.commands.run('sleep 1000', { background: true })
await ending.kill()
seen.killed = await running.wait().catch((error) => error.message.includes('was killed or reached its end'))
seen.end = [await box.isRunning(), await box.kill(), await box.isRunning()]
console.log(JSON.stringify(seen))
