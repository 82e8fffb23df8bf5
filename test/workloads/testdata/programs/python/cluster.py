"""A cluster of two workers of this process, which talk on localhost."""
from dask.distributed import Client, LocalCluster

with LocalCluster(n_workers=2, threads_per_worker=1, processes=False, protocol="tcp://", dashboard_address=None) as c, Client(c) as client:
    print(client.gather(client.map(lambda n: n * n, range(4))))
