"""Two processes that add up and pass a megabyte on."""
from mpi4py import MPI

c = MPI.COMM_WORLD
print(c.Get_rank(), c.allreduce(c.Get_rank() + 1), len(c.bcast("x" * 1000000 if c.Get_rank() == 0 else None)))
