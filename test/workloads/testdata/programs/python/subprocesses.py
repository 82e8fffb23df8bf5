"""asyncio: subprocesses, pipes, a Unix socket, signals; with uvloop if asked."""
import asyncio
import os
import signal
import sys


async def echo(reader, writer):
    writer.write((await reader.readline()).upper())
    await writer.drain()
    writer.close()


async def main():
    sub = await asyncio.create_subprocess_exec("tr", "a-z", "A-Z", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    out, _ = await sub.communicate(b"pipe\n")
    print(out.decode().strip(), sub.returncode)
    many = await asyncio.gather(*(asyncio.create_subprocess_shell(f"exit {i}") for i in range(4)))
    print([await m.wait() for m in many])
    server = await asyncio.start_unix_server(echo, "socket")
    reader, writer = await asyncio.open_unix_connection("socket")
    writer.write(b"socket\n")
    print((await reader.readline()).decode().strip())
    writer.close()
    server.close()
    got = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, got.set)
    os.kill(os.getpid(), signal.SIGUSR1)
    await got.wait()
    print("signal")


if sys.argv[1:] == ["uvloop"]:
    import uvloop

    uvloop.install()
asyncio.run(main())
