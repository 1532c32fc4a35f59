"""TensorFlow on Spark: Yahoo's tensorflowonspark forms a TensorFlow cluster out of a Spark cluster's executors.

engine     tf-on-spark, in the driver
package    Yahoo's package, with those of its parts replaced that stood in the way
gathering  a TensorFlow cluster on the executors, from the driver's side
roll       who of it is there: every TensorFlow process is heard of when it ends, and why
steward    what runs on an executor: it starts the TensorFlow process, and sees to its end
node       the TensorFlow process: a worker, a parameter server, or the coordinator
feed       rows pushed by Spark: how they are cut, pushed, and taken
fed        training from what is pushed
rows       the rows on their way to the executors
label      the classes of rows, found on the executors
"""
