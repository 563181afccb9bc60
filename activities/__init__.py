"""All input and output: activities and what they stand on."""
