"""JavaScript that the image's node runs inside the sandbox: platform, unpacking, install scripts.

For any node since 12, without a library. The unpacker trusts nothing in a tarball, although it
could only harm its own sandbox: names that lead elsewhere, links and devices are skipped.
"""

from __future__ import annotations

from typing import Final

LOOK: Final = """
const report = process.report && process.report.getReport();
const glibc = report && report.header && report.header.glibcVersionRuntime;
console.log(JSON.stringify({
  os: process.platform, cpu: process.arch, libc: glibc ? "glibc" : "musl",
}));
"""

UNPACK: Final = r"""
const fs = require("fs"), path = require("path"), zlib = require("zlib");
const [given, made] = process.argv.slice(1);
process.umask(0o022);

const text = (block, at, size) => {
  const end = block.indexOf(0, at);
  return block.toString("utf8", at, end >= at && end < at + size ? end : at + size);
};
const figure = (block, at, size) => {
  if (block[at] & 0x80) return Number(block.readBigUInt64BE(at + size - 8));
  return parseInt(text(block, at, size).trim() || "0", 8);
};
const pax = (data) => {
  const said = {};
  for (let at = 0; at < data.length;) {
    const space = data.indexOf(32, at);
    const size = space < 0 ? 0 : parseInt(data.toString("utf8", at, space), 10);
    if (!(size > 0)) break;
    const record = data.toString("utf8", space + 1, at + size - 1);
    const equals = record.indexOf("=");
    said[record.slice(0, equals)] = record.slice(equals + 1);
    at += size;
  }
  return said;
};
const landing = (root, name) => {
  const parts = name.split("/").filter((part) => part !== "" && part !== ".");
  if (name.startsWith("/") || parts.includes("..") || name.includes("\0")) {
    throw new Error("a member leads out of the package: " + JSON.stringify(name.slice(0, 200)));
  }
  return parts.length < 2 ? null : path.join(root, ...parts.slice(1));
};

async function unpack(file, root) {
  fs.mkdirSync(root, { recursive: true });
  let held = Buffer.alloc(0), out = null, left = 0, pad = 0, more = {}, keep = null;
  const member = (block) => {
    const size = figure(block, 124, 12), kind = String.fromCharCode(block[156] || 48);
    const prefix = block.toString("latin1", 257, 262) === "ustar" ? text(block, 345, 155) : "";
    const plain = (prefix ? prefix + "/" : "") + text(block, 0, 100);
    const real = more.size && kind === "0" ? Number(more.size) : size;
    left = real; pad = (512 - (real % 512)) % 512;
    if (!(left >= 0)) throw new Error("a member has no size");
    if (kind === "x" || kind === "L") {
      if (left > 1 << 20) throw new Error("a header is too long");
      keep = { kind, parts: [] };
      return;
    }
    const to = kind === "0" || kind === "7" ? landing(root, more.path || plain) : null;
    more = {};
    if (to) {
      fs.mkdirSync(path.dirname(to), { recursive: true });
      out = fs.openSync(to, "w", 0o644 | (figure(block, 100, 8) & 0o111));
    }
  };
  const finish = () => {
    if (out !== null) { fs.closeSync(out); out = null; }
    if (keep) {
      const data = Buffer.concat(keep.parts);
      more = keep.kind === "x" ? pax(data) : { path: text(data, 0, data.length) };
      keep = null;
    }
  };
  let open = false;
  for await (const piece of fs.createReadStream(file).pipe(zlib.createGunzip())) {
    held = held.length ? Buffer.concat([held, piece]) : piece;
    for (;;) {
      if (!open) {
        if (held.length < 512) break;
        const block = held.subarray(0, 512);
        held = held.subarray(512);
        if (block.every((byte) => byte === 0)) continue;
        member(block);
        open = true;
      }
      const now = held.subarray(0, Math.min(left, held.length));
      if (out !== null) for (let at = 0; at < now.length;) at += fs.writeSync(out, now, at);
      if (keep) keep.parts.push(Buffer.from(now));
      left -= now.length;
      held = held.subarray(now.length);
      if (left > 0 || held.length < pad) break;
      held = held.subarray(pad);
      finish();
      open = false;
    }
  }
  if (open) throw new Error("it ends too early");
}

(async () => {
  fs.mkdirSync(made + "/.bin", { recursive: true });
  for (const one of JSON.parse(fs.readFileSync(given + "/plan.json", "utf8"))) {
    const root = path.join(made, one.path);
    try {
      await unpack(path.join(given, one.file), root);
    } catch (error) {
      throw new Error(one.path + ": " + error.message);
    }
    for (const [name, program] of Object.entries(one.bin)) {
      const target = path.join(root, path.join("/", program));
      if (!fs.existsSync(target)) continue;
      fs.chmodSync(target, 0o755);
      const link = path.join(made, ".bin", name);
      if (!fs.existsSync(link)) fs.symlinkSync(path.relative(made + "/.bin", target), link);
    }
  }
})().catch((error) => {
  console.error(String(error && error.message));
  process.exit(1);
});
"""

# Dependencies come first, as far as the order of placing shows it. The sandbox has no network, and
# what a script of an optional package fails to make is left out, as npm does.
SCRIPTS: Final = r"""
const fs = require("fs"), path = require("path"), { spawnSync } = require("child_process");
const [given, made] = process.argv.slice(1);
process.umask(0o022);
const above = path.join(path.dirname(made), "node_modules");
const scratch = path.join(path.dirname(made), "tmp");
fs.mkdirSync(scratch, { recursive: true });
const plan = JSON.parse(fs.readFileSync(given + "/plan.json", "utf8"));
const scripts = (root) => {
  try {
    const about = JSON.parse(fs.readFileSync(path.join(root, "package.json"), "utf8"));
    const found = about.scripts || {};
    return ["preinstall", "install", "postinstall"]
      .filter((stage) => typeof found[stage] === "string")
      .map((stage) => ({ stage, command: found[stage], about }));
  } catch (error) {
    return [];
  }
};
for (const one of plan.reverse()) {
  const root = path.join(made, one.path);
  for (const { stage, command, about } of scripts(root)) {
    // From a package's own directory, node finds the others beside it.
    if (!fs.existsSync(above)) fs.symlinkSync(made, above);
    const done = spawnSync("/bin/sh", ["-c", command], {
      cwd: root,
      stdio: ["ignore", "inherit", "inherit"],
      env: {
        PATH: [path.join(root, "node_modules/.bin"), path.join(made, ".bin"), process.env.PATH]
          .join(":"),
        HOME: scratch, TMPDIR: scratch, INIT_CWD: scratch, NODE: process.execPath,
        npm_node_execpath: process.execPath, npm_execpath: "", npm_command: "install",
        npm_lifecycle_event: stage, npm_lifecycle_script: command,
        npm_package_name: String(about.name), npm_package_version: String(about.version),
        npm_package_json: path.join(root, "package.json"),
        npm_config_user_agent: "npm/10 sandkasten",
      },
    });
    if (done.status === 0) continue;
    const ending = done.error ? done.error.message
      : done.signal ? "signal " + done.signal : "status " + done.status;
    if (one.optional) {
      console.error(one.path + ": " + stage + " failed (" + ending + "); it is optional");
      fs.rmSync ? fs.rmSync(root, { recursive: true, force: true })
        : fs.rmdirSync(root, { recursive: true });
      break;
    }
    const what = one.path + ": " + stage + " (" + command.slice(0, 200) + ")";
    console.error(what + " ended with " + ending);
    process.exit(1);
  }
}
"""
