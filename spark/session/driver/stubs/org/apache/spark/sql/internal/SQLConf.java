package org.apache.spark.sql.internal;

public class SQLConf {
    public static native SQLConf get();

    public native String getConfString(String key);
}
