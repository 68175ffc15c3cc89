package py4j;

import java.util.List;

public class Gateway {
    public Gateway(Object entryPoint) {}

    public native ReturnObject invoke(String className, List<Object> arguments);

    public native ReturnObject invoke(String methodName, String targetId, List<Object> arguments);

    public native Object getObject(String id);

    public native Object putObject(String id, Object object);

    public native ReturnObject getReturnObject(Object object);
}
