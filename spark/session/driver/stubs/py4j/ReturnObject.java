package py4j;

public class ReturnObject {
    public native boolean isError();

    public native String getName();

    public native Object getPrimitiveObject();
}
