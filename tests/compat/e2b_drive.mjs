// What E2B's documentation shows, with its published JavaScript SDK; prints what was seen as JSON.
import { Sandbox } from 'e2b'
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
seen.end = [await box.isRunning(), await box.kill(), await box.isRunning()]
console.log(JSON.stringify(seen))
