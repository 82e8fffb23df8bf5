"""multiprocessing in its ways to start a process, and what processes share."""
import concurrent.futures
import multiprocessing as mp
from multiprocessing import shared_memory


def square(n):
    return n * n


def fill(name, lock):
    mem = shared_memory.SharedMemory(name=name)
    with lock:
        mem.buf[0] += 1
    mem.close()


def main():
    for method in ("fork", "spawn", "forkserver"):
        with mp.get_context(method).Pool(2) as pool:
            print(method, pool.map(square, range(5)))
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        print("executor", list(pool.map(square, range(5))))
    mem = shared_memory.SharedMemory(create=True, size=16)
    lock = mp.Lock()
    children = [mp.Process(target=fill, args=(mem.name, lock)) for _ in range(3)]
    for c in children:
        c.start()
    for c in children:
        c.join()
    print("shared memory", mem.buf[0])
    mem.close()
    mem.unlink()


if __name__ == "__main__":
    main()
