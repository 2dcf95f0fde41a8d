"""What tests, benchmarks and stress runs need: faulty stores, a crash disk, simulated time, models.

It stands beside the stack and may import all of it; of the product only the command line uses it.
"""
