/** A listener on this machine that passes connections on to a port of a session. */

import { createServer, type Server, type Socket as TcpSocket } from "node:net";

import type { Session } from "../session.js";

/** A listener on 127.0.0.1, until closed. Every program on this machine can connect. */
export class PortForward implements AsyncDisposable {
  private readonly open = new Set<TcpSocket>();

  private constructor(
    private readonly server: Server,
    readonly port: number,
  ) {}

  /** Made by `forward`. */
  static async listen(session: Session, port: number, localPort: number): Promise<PortForward> {
    const server = createServer({ allowHalfOpen: true });
    await new Promise<void>((resolve, reject) => {
      server.once("error", reject);
      server.listen(localPort, "127.0.0.1", resolve);
    });
    const address = server.address();
    const made = new PortForward(
      server,
      typeof address === "object" && address !== null ? address.port : localPort,
    );
    server.on("connection", (socket) => {
      made.open.add(socket);
      socket.once("close", () => made.open.delete(socket));
      // A connection that fails ends as it would with the server itself.
      void pass(session, port, socket).catch(() => socket.destroy());
    });
    return made;
  }

  async close(): Promise<void> {
    for (const socket of this.open) {
      socket.destroy();
    }
    await new Promise<void>((resolve) => {
      this.server.close(() => resolve());
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

/** Listen on 127.0.0.1 and pass connections on to a port of a session; 0 is any free port. */
export function forward(session: Session, port: number, localPort = 0): Promise<PortForward> {
  return PortForward.listen(session, port, localPort);
}

async function pass(session: Session, port: number, socket: TcpSocket): Promise<void> {
  socket.on("error", () => undefined);
  await using inside = await session.connect(port);
  const inward = (async (): Promise<void> => {
    for await (const data of socket as AsyncIterable<Buffer>) {
      await inside.send(data);
    }
    await inside.end();
  })();
  inward.catch(() => socket.destroy());
  for await (const data of inside) {
    if (!socket.write(data)) {
      await new Promise<void>((resolve) => {
        socket.once("drain", resolve);
        socket.once("close", resolve);
      });
    }
  }
  socket.end();
  await inward;
}
