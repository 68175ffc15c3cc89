import com.fasterxml.jackson.databind.JsonNode;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordSerde;
import org.apache.kafka.coordinator.group.generated.CoordinatorRecordJsonConverters;
import org.apache.kafka.tools.consumer.CoordinatorRecordMessageFormatter;

/** A formatter for the console consumer: prints every record of __consumer_offsets with Kafka's own classes. */
public class GroupRecordFormatter extends CoordinatorRecordMessageFormatter {
    public GroupRecordFormatter() {
        super(new GroupCoordinatorRecordSerde());
    }

    @Override
    protected boolean isRecordTypeAllowed(short recordType) {
        return true;
    }

    @Override
    protected JsonNode keyAsJson(ApiMessage key) {
        return CoordinatorRecordJsonConverters.writeRecordKeyAsJson(key);
    }

    @Override
    protected JsonNode valueAsJson(ApiMessage value, short version) {
        return CoordinatorRecordJsonConverters.writeRecordValueAsJson(value, version);
    }
}
