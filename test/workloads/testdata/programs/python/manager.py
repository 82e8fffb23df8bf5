"""A multiprocessing manager: a server process on a Unix socket."""
import multiprocessing as mp


def put(d, k):
    d[k] = k * k


if __name__ == "__main__":
    with mp.Manager() as manager:
        d = manager.dict()
        children = [mp.Process(target=put, args=(d, k)) for k in range(3)]
        for c in children:
            c.start()
        for c in children:
            c.join()
        print(sorted(d.items()))
