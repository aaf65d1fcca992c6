"""What Decamp asks an AWS account itself, beside what the Pulumi provider does: facts, prices, capacity, leftovers."""
