"""The SSD persister: prefixes on disk.

Owns: nothing yet: the disk tier is not built, so it holds no file and every Load is a miss.
Takes: Load from the store.
Sends: Loaded to the store.
Waited for by: nobody.
"""

from typing import assert_never

import trio

from motet.channels.mailbox import Outlet, post
from motet.channels.persister import Closing, Load, ToPersister
from motet.channels.store import Loaded


async def persister(inbox: trio.MemoryReceiveChannel[ToPersister], to_store: Outlet[Loaded]) -> None:
    """Run until the store has left."""
    async for message in inbox:
        match message:
            case Load(row):
                post(to_store, Loaded(row, None))
            case Closing():
                return
            case _:
                assert_never(message)
