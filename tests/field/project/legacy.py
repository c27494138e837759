"""Code that was written before there was a queue: a function, and a program."""

import sys


def multiply(one, other):
    print("multiplying", one, other)
    return {"answer": one * other}


if __name__ == "__main__":
    print(multiply(int(sys.argv[1]), int(sys.argv[2])))
