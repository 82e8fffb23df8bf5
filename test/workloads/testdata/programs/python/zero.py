"""A pair of ZeroMQ sockets."""
import os
import zmq

context = zmq.Context()
address = "ipc://" + os.getcwd() + "/socket"
a, b = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
a.bind(address)
b.connect(address)
a.send(b"through")
print(b.recv().decode())
