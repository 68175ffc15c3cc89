package py4j;

public class Protocol {
    public static final native Object getObject(String part, Gateway gateway);

    public static final native String getOutputCommand(ReturnObject result);
}
