# Filled in with the emulator and the first .cu twins.
