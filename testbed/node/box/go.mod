module tapestry.io/testbed/box

go 1.26.0
