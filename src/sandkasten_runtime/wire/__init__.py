"""The runner protocol, client side: frames, messages and one multiplexed channel.

Knows only `errors`. Everything that arrives here was written by a hostile program: it is bounded
before it is stored and decoded into a closed set of values.
"""

from __future__ import annotations

from sandkasten_runtime.wire.call import Call, CallEvent, Data, OutputChunk
from sandkasten_runtime.wire.channel import Channel
from sandkasten_runtime.wire.unix_socket import SocketStream, connect_unix

__all__ = ["Call", "CallEvent", "Channel", "Data", "OutputChunk", "SocketStream", "connect_unix"]
