# The first sector of a disk, for a PC: says "booted" on the serial line and ends the machine
# through QEMU's debug port.
use strict;
my $code = pack "C*", 0xba, 0xf8, 0x03,                      # mov dx, 3f8h
  (map { (0xb0, ord, 0xee) } split //, "booted\n"),          # mov al, C; out dx, al
  0xba, 0xf4, 0x00, 0x30, 0xc0, 0xee, 0xf4;                  # mov dx, 0f4h; xor al, al; out dx, al; hlt
print $code, "\0" x (510 - length $code), "\x55\xaa";
