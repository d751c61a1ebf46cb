"""Files to Kafka: plays the records of a file into a topic, as fast as possible or at a steady rate."""
